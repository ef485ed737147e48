//! The provider's address, parsed once from the operator's configuration.
//!
//! It must never be built from anything that a guest or a repository said.

use std::collections::BTreeMap;

use cofferdam_policy::{Authority, EgressPolicy, Host, NamePermit, Route, Services};

/// What is wrong with a base URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// Neither `https://` nor `http://`.
    #[error("it must begin with https://")]
    Scheme,
    /// Plain HTTP to something that is no local service.
    #[error("plain http is for a local service that the configuration marks as such")]
    PlainHttp,
    /// The host and port do not parse.
    #[error("{0}")]
    Authority(String),
    /// A query, fragment, user name, or a path that is not plain.
    #[error("it must be https://HOST[:PORT][/PREFIX], nothing more")]
    Shape,
    /// The address is of a kind that is never dialled.
    #[error("{0}")]
    Destination(String),
}

/// Where the provider is.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) tls: bool,
    pub(super) authority: Authority,
    /// As in the `host` header: without the scheme's own port.
    pub(super) host_header: String,
    prefix: String,
    policy: EgressPolicy,
}

/// Where a local service stands in for a name: the permit needs one, whatever the address is.
const ALIAS: &str = "model-provider.cofferdam.internal";

impl Origin {
    pub(super) fn parse(base_url: &str, local: bool) -> Result<Self, OriginError> {
        let (tls, rest) =
            match (base_url.strip_prefix("https://"), base_url.strip_prefix("http://")) {
                (Some(rest), _) => (true, rest),
                (None, Some(rest)) => (false, rest),
                (None, None) => return Err(OriginError::Scheme),
            };
        if !tls && !local {
            return Err(OriginError::PlainHttp);
        }
        let (host, prefix) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let prefix = prefix.trim_end_matches('/');
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-".contains(&b);
        if !prefix.bytes().all(plain) || prefix.contains("..") || prefix.contains("//") {
            return Err(OriginError::Shape);
        }
        let port = if tls { 443 } else { 80 };
        let authority =
            Authority::parse_or(host, port).map_err(|e| OriginError::Authority(e.to_string()))?;
        let host_header = if authority.port() == port {
            authority.host().to_string()
        } else {
            authority.to_string()
        };
        let admitted = match authority.host() {
            Host::V6(_) => format!("{ALIAS}:{}", authority.port()),
            Host::Name(_) | Host::V4(_) => authority.to_string(),
        };
        let alias = format!("{ALIAS}:{}", authority.port());
        let policy = EgressPolicy::load(&[admitted, alias], &[])
            .map_err(|e| OriginError::Authority(e.to_string()))?;
        let origin = Self { tls, authority, host_header, prefix: prefix.to_owned(), policy };
        if !local && origin.authority.host().literal().is_some() {
            // Refused here rather than at the first call.
            let vetted = origin.name_permit()?.vet(&[]);
            vetted.map_err(|e| OriginError::Destination(e.to_string()))?;
        }
        Ok(origin)
    }

    /// The permit to look the name up.
    pub(super) fn name_permit(&self) -> Result<NamePermit, OriginError> {
        self.permit(&self.authority)
    }

    /// The way to an address of a local service.
    pub(super) fn service_route(&self, address: std::net::IpAddr) -> Result<Route, OriginError> {
        let place = std::net::SocketAddr::new(address, self.authority.port()).to_string();
        let services = Services::load(BTreeMap::from([(ALIAS.to_owned(), place)]))
            .map_err(|e| OriginError::Destination(e.to_string()))?;
        let alias = Authority::parse(&format!("{ALIAS}:{}", self.authority.port()))
            .map_err(|e| OriginError::Authority(e.to_string()))?;
        Ok(services.route(self.permit(&alias)?))
    }

    fn permit(&self, authority: &Authority) -> Result<NamePermit, OriginError> {
        self.policy.decide(authority).map_err(|e| OriginError::Destination(e.to_string()))
    }

    /// The request target for `path`. A version segment that the base URL already has is not doubled.
    pub(super) fn target(&self, path: &str, query: Option<&str>) -> String {
        let doubled = ["/v1", "/v1beta"].into_iter().find(|version| {
            self.prefix.ends_with(version)
                && path.strip_prefix(version).is_some_and(|rest| rest.starts_with('/'))
        });
        let path = doubled.and_then(|version| path.strip_prefix(version)).unwrap_or(path);
        match query {
            Some(query) => format!("{}{path}?{query}", self.prefix),
            None => format!("{}{path}", self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_are_plain_or_refused() {
        for (url, local) in [
            ("https://api.anthropic.com", false),
            ("https://openrouter.ai/api/v1/", false),
            ("http://127.0.0.1:8080", true),
            ("http://localhost:11434/v1", true),
            ("http://[::1]:8080", true),
        ] {
            assert!(Origin::parse(url, local).is_ok(), "{url}");
        }
        for (url, local, error) in [
            ("http://api.anthropic.com", false, OriginError::PlainHttp),
            ("ftp://x", true, OriginError::Scheme),
            ("https://a/b?c", false, OriginError::Shape),
            ("https://a/../b", false, OriginError::Shape),
        ] {
            assert_eq!(Origin::parse(url, local).err(), Some(error), "{url}");
        }
        for url in [
            "https://me@a.com",
            "https://a.com#x",
            "https://",
            "https://a b.com",
            "https://a.com:0",
        ] {
            assert!(Origin::parse(url, false).is_err(), "{url}");
        }
    }

    #[test]
    fn an_address_that_is_not_local_must_be_public() {
        for url in [
            "https://127.0.0.1",
            "https://10.0.0.8:8443",
            "https://169.254.169.254",
            "https://[::1]",
        ] {
            let error = Origin::parse(url, false).unwrap_err();
            assert!(matches!(error, OriginError::Destination(_)), "{url}: {error:?}");
        }
        assert!(Origin::parse("https://8.8.8.8", false).is_ok());
    }

    #[test]
    fn the_version_is_not_doubled() {
        for (base, path, expect) in [
            ("https://a.com", "/v1/messages", "/v1/messages"),
            ("https://a.com/api/v1", "/v1/chat/completions", "/api/v1/chat/completions"),
            ("https://a.com/v1beta", "/v1beta/models/m:x", "/v1beta/models/m:x"),
            ("https://a.com/xv1", "/v1/messages", "/xv1/v1/messages"),
        ] {
            let origin = Origin::parse(base, false).unwrap();
            assert_eq!(origin.target(path, None), expect, "{base}");
        }
    }

    #[test]
    fn a_local_service_may_be_loopback_but_never_metadata() {
        let origin = Origin::parse("http://box:8080", true).unwrap();
        assert!(matches!(origin.service_route([127, 0, 0, 1].into()), Ok(Route::Service(_))));
        assert!(origin.service_route([169, 254, 169, 254].into()).is_err());
    }
}
