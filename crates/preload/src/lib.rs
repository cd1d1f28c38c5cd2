//! The library that `shunt run` puts in front of a program: libc's socket functions under their
//! own names. A function here is a signature and one expression; nothing is decided.
//!
//! | module | exports |
//! |---|---|
//! | `exports::socket` | socket, accept, connect, shutdown, getsockopt, setsockopt |
//! | `exports::io` | read, write, recv, send and their relatives, sendfile, splice |
//! | `exports::descriptor` | close, dup, fcntl, ioctl, fdopen, freopen, fclose |
//! | `exports::aio` | aio_read, aio_write, lio_listio |
//! | `exports::listing` | readdir, getdents64, scandir |
//! | `exports::readiness` | poll, select, epoll |
//! | `exports::modules` | dlopen, dlmopen |
//! | `exports::process` | fork, exec, spawn, syscall |

// UNSAFETY: exports C functions.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)]
// Each is the libc function of the same name.
// SAFETY of every block in `exports`: the program's own arguments are passed on unchanged, to a
// function with the contract of the libc function that the program called.
#![allow(clippy::undocumented_unsafe_blocks)]

mod boundary;
mod exports;
mod start;

#[global_allocator]
static ALLOCATOR: shunt_os::allocator::Allocator = shunt_os::allocator::Allocator;
