//! Request bodies as a tree that keeps the order of keys and refuses what two parsers could read in
//! two ways.
//!
//! What was checked is what is sent: the tree is written out again, the guest's bytes never travel.
//! `serde_json::Value` would sort the keys (a model reads schemas in order) and take the last of two
//! equal keys (a provider might take the first). It must never build a tree without bound.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Number;

use super::limits::MAX_JSON_VALUES;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Json>),
    Object(Object),
}

/// An object; keys are unique and in their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Object(Vec<(String, Json)>);

impl Json {
    /// Parses a whole document.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let left = Cell::new(MAX_JSON_VALUES);
        let mut parser = serde_json::Deserializer::from_slice(bytes);
        let value = Seed(&left).deserialize(&mut parser)?;
        parser.end()?;
        Ok(value)
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Number(number) => number.as_u64(),
            _ => None,
        }
    }

    pub(super) fn as_object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Bytes of the written form.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Writing a tree of plain values into a vector has no way to fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl From<u64> for Json {
    fn from(value: u64) -> Self {
        Self::Number(value.into())
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl Object {
    pub(super) fn get(&self, key: &str) -> Option<&Json> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Json> {
        self.0.iter_mut().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// Text at `key`.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Json::as_str)
    }

    pub(super) fn set(&mut self, key: &str, value: Json) {
        match self.get_mut(key) {
            Some(place) => *place = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// The object at `key`, made when absent or null; `None` when something else stands there.
    pub(super) fn object_mut(&mut self, key: &str) -> Option<&mut Self> {
        if self.get(key).is_none_or(Json::is_null) {
            self.set(key, Json::Object(Self::default()));
        }
        match self.get_mut(key) {
            Some(Json::Object(object)) => Some(object),
            _ => None,
        }
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(value) => value.serialize(serializer),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(value) => value.serialize(serializer),
            Self::Object(value) => {
                let mut map = serializer.serialize_map(Some(value.0.len()))?;
                for (key, value) in &value.0 {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

/// Counts values down while it builds them. Depth is bounded by `serde_json` itself (128).
#[derive(Clone, Copy)]
struct Seed<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        match self.0.get().checked_sub(1) {
            Some(left) => self.0.set(left),
            None => return Err(D::Error::custom("too many values")),
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Json, E> {
        Number::from_f64(value).map(Json::Number).ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = access.next_element_seed(self)? {
            list.push(value);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut entries: Vec<(String, Json)> = Vec::new();
        while let Some(key) = access.next_key()? {
            entries.push((key, access.next_value_seed(self)?));
        }
        let mut keys: Vec<&str> = entries.iter().map(|(k, _)| k.as_str()).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(A::Error::custom("the same key twice in one object"));
        }
        Ok(Json::Object(Object(entries)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_values_their_form() {
        let text = r#"{"z":1,"a":[null,true,-3,0.7,"ü\n"],"m":{"y":{},"b":18446744073709551615}}"#;
        let json = Json::parse(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(json.to_bytes()).unwrap(), text);
    }

    #[test]
    fn ambiguous_and_unbounded_documents_are_refused() {
        for text in [r#"{"a":1,"a":2}"#, r#"{"a":1,"\u0061":2}"#, "{} {}", "[1,]", ""] {
            assert!(Json::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Json::parse("[".repeat(200).as_bytes()).is_err());
        let many = format!("[{}0]", "0,".repeat(MAX_JSON_VALUES));
        assert!(Json::parse(many.as_bytes()).is_err());
    }
}
