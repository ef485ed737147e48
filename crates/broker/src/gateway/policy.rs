//! What the operator's policy opens beyond plain generation.
//!
//! Everything is closed by default and opened by name. Nothing in here comes from a repository or a
//! guest.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Exceptions that the operator names for a run. The default admits none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayPolicy {
    /// Types of tools and of content to admit on top of the built-in ones, exactly as they stand in a
    /// request: `web_search_20250305`, `server_tool_use`, `web_search_call`, `googleSearch`.
    pub types: BTreeSet<String>,
    /// Top-level fields of a request to admit on top of the built-in ones: `mcp_servers`.
    pub fields: BTreeSet<String>,
    /// Admit `http(s)` URLs that the provider fetches (images, documents, Gemini file URIs).
    pub url_inputs: bool,
    /// Admit ids of files kept at the provider.
    pub file_inputs: bool,
    /// Models for side requests (titles, routers), on top of the run's own.
    pub models: BTreeSet<String>,
}
