//! What the kernel keeps of links that are gone. One test: other threads of a process map memory, too.

use shunt_link::Memory;
use shunt_os::handles;

#[test]
#[cfg_attr(miri, ignore = "needs real mappings")]
fn a_hundred_dead_links_are_few_mappings_to_the_kernel() {
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("this process has maps");
        maps.lines().count()
    };
    let before = mappings();
    for _ in 0..100 {
        let (memory, fd) = Memory::create(64, 1 << 20).expect("memory");
        handles::close(fd);
        memory.retire();
    }
    assert!(mappings() < before + 10, "{} mappings more", mappings() - before);
}
