//! Durable runs: events, leases, records. The only room that speaks SQL.
