//! The words that counters are kept under: carriers and reasons.
//!
//! One table serves the library, `shunt stat`, reports and the documentation. A number that was ever
//! written to a segment keeps its meaning: new reasons go to the end of the table.

macro_rules! catalog {
    ($(#[$doc:meta])* $Enum:ident: $repr:ty { $($variant:ident = $name:literal, $help:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($repr)]
        pub enum $Enum { $(#[doc = $help] $variant,)* }

        impl $Enum {
            pub const ALL: &'static [$Enum] = &[$($Enum::$variant,)*];

            /// The name in counters, JSON and output: lower case with underscores.
            pub const fn name(self) -> &'static str {
                match self { $($Enum::$variant => $name,)* }
            }

            /// One line for a person.
            pub const fn help(self) -> &'static str {
                match self { $($Enum::$variant => $help,)* }
            }

            pub fn from_number(number: $repr) -> Option<$Enum> {
                Self::ALL.get(usize::from(number)).copied()
            }

            pub fn from_name(name: &str) -> Option<$Enum> {
                Self::ALL.iter().copied().find(|one| one.name() == name)
            }
        }
    };
}

catalog! {
    /// What moves the bytes of a stream.
    Carrier: u8 {
        Tcp = "tcp", "the kernel's TCP";
        Shm = "shm", "a ring in shared memory";
        Verbs = "verbs", "RDMA through verbs";
        Iwarp = "iwarp", "iWARP in software";
    }
}

catalog! {
    /// Why a stream, or a call, is left to kernel TCP.
    Reason: u16 {
        NotTriedYet = "not_tried_yet", "the stream did not yet ask for another carrier";
        TooFewMessages = "too_few_messages", "it ended before an upgrade would have paid";
        NotThisHost = "not_this_host", "the peer is on another host";
        PeerNotFound = "peer_not_found", "the process at the other end does not run under Shunt";
        RefusedByPeer = "refused_by_peer", "the process at the other end said no";
        NoSocketDiagnosis = "no_socket_diagnosis", "the kernel's socket diagnosis is not available, so nobody can prove who is at the other end";
        NotTheOwner = "not_the_owner", "the process at the other end could not prove that the connection is its own";
        NoMemory = "no_memory", "no shared memory could be had";
        NoDescriptors = "no_descriptors", "the process has no descriptors left, or may have 64 at most";
        NotConnected = "not_connected", "the socket is not connected yet";
        SharedWithOtherProcess = "shared_with_other_process", "several processes use the descriptor";
        PeerDied = "peer_died", "the process at the other end died";
        RingFullForLong = "ring_full_for_long", "the peer did not read for long, so the bytes wait in the kernel";
        Fdopen = "fdopen", "the C library reads and writes it through a FILE";
        Exec = "exec", "the descriptor was kept across exec";
        PassedDescriptor = "passed_descriptor", "the descriptor was passed to another process";
        UrgentData = "urgent_data", "urgent (out of band) data was used";
        ZeroCopy = "zero_copy", "MSG_ZEROCOPY, MSG_FASTOPEN or TCP_ZEROCOPY_RECEIVE was asked for";
        Splice = "splice", "splice, tee or sendfile between sockets was used";
        UnsupportedOption = "unsupported_option", "a socket option was set that only the kernel serves";
        NestedEpoll = "nested_epoll", "an epoll set that holds it is itself in a set";
        EpollExclusive = "epoll_exclusive", "it is in an epoll set as EPOLLEXCLUSIVE";
        CorruptPeer = "corrupt_peer", "shared memory held something that makes no sense";
        BadSetting = "bad_setting", "a setting in the environment could not be understood";
        StaticProgram = "static_program", "the program is linked statically and loads no library";
        SetUidProgram = "set_uid_program", "the program is set-uid or set-gid, so the loader ignores the library";
        OtherArchitecture = "other_architecture", "the program is for another processor";
        Closed = "closed", "the stream was closed";
        LinkFailed = "link_failed", "the link to the other process broke";
        ForkChild = "fork_child", "a forked child uses it together with its parent";
        OtherLibc = "other_libc", "the program uses a C library that cannot load ours";
        Seccomp = "seccomp", "the process put itself under a seccomp filter";
        Namespaces = "namespaces", "the process changed its namespaces";
        IoUring = "io_uring", "the process uses io_uring for more than files and epoll sets";
        Aio = "aio", "asynchronous I/O was asked for, which the C library or the kernel does by itself";
        StandardStream = "standard_stream", "it is standard input, output or error, which the C library reads and writes by itself";
        LeftInEpoll = "left_in_epoll", "its number was closed and its epoll registration was not, for a copy keeps it";
        Disconnected = "disconnected", "the program dissolved its connection and may have made another";
        SplitDescriptors = "split_descriptors", "a thread of the process has descriptors of its own";
        LockedMemory = "locked_memory", "the process keeps all memory that it maps resident";
        OtherCalls = "other_calls", "the process opened a module whose calls are bound to another C library, or to the genuine functions of its own";
        PolledNumber = "polled_number", "it was given a number by which a poll sleeps in the kernel, for what had it before";
        TookOurNumber = "took_our_number", "the program gave the number of a descriptor of ours to one of its own";
        LimitedAddresses = "limited_addresses", "the process may map only so much memory (RLIMIT_AS), of which rings would take a part";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_reasons() {
        for (number, reason) in Reason::ALL.iter().copied().enumerate() {
            assert_eq!(Reason::from_number(number as u16), Some(reason));
            assert_eq!(Reason::from_name(reason.name()), Some(reason));
            assert!(!reason.help().is_empty());
        }
        assert_eq!(Reason::from_number(Reason::ALL.len() as u16), None);
        assert_eq!(Carrier::from_number(1), Some(Carrier::Shm));
    }

    #[test]
    fn every_reason_is_documented() {
        let page = include_str!("../../../docs/design/stats.md");
        for reason in Reason::ALL {
            let row = format!("| `{}` | {} |", reason.name(), reason.help());
            assert!(page.contains(&row), "docs/design/stats.md lacks: {row}");
        }
    }

    #[test]
    fn names_are_lower_case_words() {
        let plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(Reason::ALL.iter().all(|reason| reason.name().chars().all(plain)));
    }
}
