//! The multiplexed byte stream between host and guest, both ends.
