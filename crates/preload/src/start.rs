//! Runs when the loader has mapped us, before the program's own start.

extern "C" fn start() {
    shunt_sockets::process::start();
}

#[used]
#[link_section = ".init_array"]
static START: extern "C" fn() = start;
