//! The proof that a process holds the other end of a connection.
//!
//! First the kernel says which user owns the other end, and only a process of that user is
//! shown our end (it is a capability, but that user could take it anyway). Then the process
//! shows its own end, and the kernel's name of what it passed must be that of the other end.

use shunt_os::handles;
use shunt_os::peer::{Diagnosis, Owner, Tuple};

/// Why a process is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// The kernel's socket diagnosis does not answer here.
    NoDiagnosis,
    /// The other end belongs to another user than the process at the control channel.
    NotTheOwner,
    /// What it passed is not the other end.
    NotTheOtherEnd,
}

/// The owner of the other end of `own`, if `uid` is that user.
pub fn owner_of_other_end(
    diagnosis: &mut Diagnosis,
    own: &Tuple,
    uid: u32,
) -> Result<Owner, Distrust> {
    let owner = diagnosis.owner(&own.reversed()).map_err(|_| Distrust::NoDiagnosis)?;
    if owner.uid != uid {
        return Err(Distrust::NotTheOwner);
    }
    Ok(owner)
}

/// Whether the passed descriptor is the socket that the kernel named as the other end.
pub fn is_other_end(passed: i32, owner: &Owner) -> Result<(), Distrust> {
    match handles::cookie(passed) {
        Ok(cookie) if cookie == owner.cookie && cookie != 0 => Ok(()),
        _ => Err(Distrust::NotTheOtherEnd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_real_other_end_is_believed_and_no_other() {
        let (client, server) = pair();
        let (stranger, _keep) = pair();
        let own = shunt_os::peer::tuple(client.as_raw_fd()).unwrap();
        let mut line = Diagnosis::open().unwrap();
        let uid = line.owner(&own).unwrap().uid;
        let owner = owner_of_other_end(&mut line, &own, uid).unwrap();
        assert_eq!(is_other_end(server.as_raw_fd(), &owner), Ok(()));
        assert_eq!(is_other_end(client.as_raw_fd(), &owner), Err(Distrust::NotTheOtherEnd));
        assert_eq!(is_other_end(stranger.as_raw_fd(), &owner), Err(Distrust::NotTheOtherEnd));
        let other_user = owner_of_other_end(&mut line, &own, uid.wrapping_add(1));
        assert_eq!(other_user.err(), Some(Distrust::NotTheOwner));
    }

    #[test]
    fn ipv6_and_mapped_connections_are_found() {
        let Ok(listener) = TcpListener::bind("[::]:0") else { panic!("IPv6 is needed") };
        let port = listener.local_addr().unwrap().port();
        let mut line = Diagnosis::open().unwrap();
        for address in ["127.0.0.1", "::1"] {
            let client = TcpStream::connect((address, port)).unwrap();
            let server = listener.accept().unwrap().0;
            let own = shunt_os::peer::tuple(client.as_raw_fd()).unwrap();
            let uid = line.owner(&own).unwrap().uid;
            let owner = owner_of_other_end(&mut line, &own, uid).unwrap();
            assert_eq!(is_other_end(server.as_raw_fd(), &owner), Ok(()));
            assert_eq!(shunt_os::peer::tuple(server.as_raw_fd()).unwrap().reversed(), own);
        }
    }
}
