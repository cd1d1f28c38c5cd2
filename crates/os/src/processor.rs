//! What kind of processor this is.

/// By the vendor's name (CPUID, leaf 0). In a virtual machine that takes some 10 us.
#[cfg(all(any(target_arch = "x86_64", target_arch = "x86"), not(miri)))]
pub fn is_made_by_amd() -> bool {
    #[cfg(target_arch = "x86")]
    use core::arch::x86::__cpuid;
    #[cfg(target_arch = "x86_64")]
    use core::arch::x86_64::__cpuid;
    let name = __cpuid(0);
    let parts = [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes);
    parts.as_flattened() == b"AuthenticAMD"
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "x86"), not(miri))))]
pub fn is_made_by_amd() -> bool {
    false
}

#[cfg(all(test, not(miri)))]
mod tests {
    #[test]
    fn the_maker_is_the_one_that_linux_names() {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        assert_eq!(super::is_made_by_amd(), cpus.contains("AuthenticAMD"));
    }
}
