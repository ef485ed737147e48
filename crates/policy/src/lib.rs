//! What may leave: egress rules, parsed authorities, destination vetting. Permits have private constructors.
