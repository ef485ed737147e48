//! libFuzzer's way into the body of `tls_hello`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz_bodies::run("tls_hello", data));
