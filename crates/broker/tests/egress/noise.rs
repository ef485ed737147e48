//! Random and mutilated bytes: no panic, no dial but to what the rules name, always an end.

use proptest::prelude::*;

use crate::support::{AUTH, World, connect, get};

/// Sends bytes and checks what must hold for all bytes.
fn survive(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World::plain();
        let inside = {
            let (mut guest, inside) = tokio::io::duplex(1 << 20);
            let door = world.door.clone();
            let serving = tokio::spawn(async move { door.serve(inside).await });
            use tokio::io::AsyncWriteExt as _;
            guest.write_all(bytes).await.unwrap();
            guest.shutdown().await.unwrap();
            // Origins that were dialled close at once, so that nothing waits for them.
            while !serving.is_finished() {
                world.outside.hosts.lock().unwrap().clear();
                tokio::task::yield_now().await;
            }
            serving
        };
        inside.await.unwrap();
        for dial in world.outside.dials.lock().unwrap().iter() {
            assert!(
                ["93.184.216.34:80", "93.184.216.34:443", "93.184.216.34:8443"]
                    .contains(&dial.as_str()),
                "dialled {dial} for {bytes:?}"
            );
        }
        for name in world.outside.lookups.lock().unwrap().iter() {
            let host = name.split(':').next().unwrap();
            assert!(host == "a.example" || host.ends_with(".w.example"), "looked up {name}");
        }
    });
}

fn seed() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(get("/").into_bytes()),
        Just(connect("a.example:443").into_bytes()),
        Just(connect("x.w.example:443").into_bytes()),
        Just(
            format!(
                "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\
                 Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nT: 1\r\n\r\n"
            )
            .into_bytes()
        ),
        Just(
            format!(
                "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\
                 Content-Length: 5\r\n\r\nhello{}",
                get("/2")
            )
            .into_bytes()
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        survive(&bytes);
    }

    #[test]
    fn mutilated_requests_are_survived(
        mut bytes in seed(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6),
    ) {
        for (at, byte, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => { bytes.remove(at); }
            }
        }
        survive(&bytes);
    }

    #[test]
    fn mutilated_hellos_are_survived(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut hello = hello();
        let at = at.index(hello.len());
        hello[at] = byte;
        hello.truncate(cut.index(hello.len()) + 1);
        survive(&[connect("a.example:443").into_bytes(), hello].concat());
    }
}

/// A ClientHello for `a.example`.
fn hello() -> Vec<u8> {
    hello_for("a.example")
}

/// A ClientHello for a name of nine letters.
pub(crate) fn hello_for(name: &str) -> Vec<u8> {
    assert_eq!(name.len(), 9);
    let mut extension = vec![0, 0, 0, 14, 0, 12, 0, 0, 9];
    extension.extend(name.as_bytes());
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0, 0, 18]);
    body.extend(extension);
    let mut message = vec![1, 0, 0, u8::try_from(body.len()).unwrap()];
    message.extend(body);
    let mut record = vec![22, 3, 1, 0, u8::try_from(message.len()).unwrap()];
    record.extend(message);
    record
}
