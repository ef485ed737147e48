//! libFuzzer's way into the body of `egress_rules`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cofferdam_fuzz_bodies::run("egress_rules", data));
