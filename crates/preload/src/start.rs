//! Runs when the loader has mapped us, before the program's own start.

extern "C" fn start() {
    shunt_sockets::process::start();
}

#[used]
#[link_section = ".init_array"]
static START: extern "C" fn() = start;

/// `exit`, after the program's own handlers.
extern "C" fn end() {
    crate::boundary::before(shunt_sockets::calls::process::exiting);
}

#[used]
#[link_section = ".fini_array"]
static END: extern "C" fn() = end;
