//! Durations, sizes and money as people write them. No floats: what is stored and hashed is whole.

/// Milliseconds of `90s`, `15m`, `2h`, `14d` or a sum such as `1h30m`.
///
/// # Errors
/// Words for people.
pub fn parse_duration_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no duration: use for example 90s, 15m, 2h or 1h30m");
    let (mut total, mut digits) = (0u64, String::new());
    let mut seen = false;
    let mut chars = text.trim().chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let unit = match c {
            'm' if chars.peek() == Some(&'s') => {
                chars.next();
                1
            }
            's' => 1_000,
            'm' => 60_000,
            'h' => 3_600_000,
            'd' => 86_400_000,
            _ => return Err(wrong()),
        };
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        digits.clear();
        total = number.checked_mul(unit).and_then(|n| total.checked_add(n)).ok_or_else(wrong)?;
        seen = true;
    }
    if !seen || !digits.is_empty() {
        return Err(wrong());
    }
    Ok(total)
}

/// Bytes of `512`, `64KiB`, `256MiB`, `4GiB` (powers of 1024) or `kB`, `MB`, `GB` (powers of 1000).
///
/// # Errors
/// Words for people.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: use for example 64KiB, 256MiB or 4GiB");
    let text_trimmed = text.trim();
    let split = text_trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(text_trimmed.len());
    let (number, unit) = text_trimmed.split_at(split);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).ok_or_else(wrong)
}

/// Micro-dollars of `2`, `2.50` or `$2.50`; at most six decimals.
///
/// # Errors
/// Words for people.
pub fn parse_micro_usd(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no amount in US dollars: use for example 2.50");
    let plain = text.trim().trim_start_matches('$');
    let (whole, part) = plain.split_once('.').unwrap_or((plain, ""));
    if whole.is_empty() || part.len() > 6 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    if !whole.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let padded = format!("{part:0<6}");
    let part: u64 = padded.parse().map_err(|_| wrong())?;
    whole.checked_mul(1_000_000).and_then(|w| w.checked_add(part)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_sizes_and_money_read_as_people_write_them() {
        for (text, want) in [
            ("90s", 90_000),
            ("15m", 900_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("14d", 1_209_600_000),
        ] {
            assert_eq!(parse_duration_ms(text), Ok(want), "{text}");
        }
        for (text, want) in [
            ("512", 512),
            ("64KiB", 65_536),
            ("4GiB", 4 << 30),
            ("4g", 4 << 30),
            ("3 MB", 3_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(want), "{text}");
        }
        for (text, want) in [("2", 2_000_000), ("2.5", 2_500_000), ("$0.000001", 1)] {
            assert_eq!(parse_micro_usd(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn nonsense_and_overflow_are_refused() {
        for text in ["", "5", "m", "5x", "-5m", "99999999999999999999d", "18446744073709551615d"] {
            assert!(parse_duration_ms(text).is_err(), "{text}");
        }
        for text in ["", "GiB", "5 zb", "-1", "18446744073709551615GiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        for text in ["", ".5", "1.0000001", "1,5", "-1", "+1", "99999999999999999999"] {
            assert!(parse_micro_usd(text).is_err(), "{text}");
        }
    }
}
