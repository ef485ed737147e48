//! Host end of the link: egress decisions, dialling, model gateway with metering.
