//! One hardening spec and the engines that apply it: native and docker.
