//! The bounds that exchanges of guests meet.

use taskrun::byte_pool::PoolFull;

use super::connections::NoConnection;
use super::request::{HEADER_BYTES_MAX, HEADERS_MAX};
use super::{ANSWER_HEADER_BYTES_MAX, ANSWER_HEADERS_MAX, BODY_BYTES_MAX, INTERIM_ANSWERS_MAX};

/// A bound that an exchange met. The words are fit for guests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExchangeLimit {
    /// The bytes of the URL.
    #[error("{0}")]
    Url(String),
    /// The headers of the request.
    #[error("more than {HEADERS_MAX} headers, or more than {HEADER_BYTES_MAX} bytes of them")]
    RequestHeaders,
    /// The body of the request.
    #[error("the body is longer than {BODY_BYTES_MAX} bytes")]
    RequestBody,
    /// The connections of the tenant, or of all tenants.
    #[error(transparent)]
    Connections(NoConnection),
    /// The answers before the answer.
    #[error("more than {INTERIM_ANSWERS_MAX} interim answers")]
    InterimAnswers,
    /// The headers of the answer.
    #[error(
        "the answer has more than {ANSWER_HEADERS_MAX} headers, or more than \
         {ANSWER_HEADER_BYTES_MAX} bytes of them"
    )]
    AnswerHeaders,
    /// The body of the answer.
    #[error("the answer is longer than {BODY_BYTES_MAX} bytes")]
    AnswerBody,
    /// The memory for bodies of the tenant, or of all tenants.
    #[error(transparent)]
    Bodies(PoolFull),
    /// A bound of an earlier exchange, of which the words are on record.
    #[error("{0}")]
    Recorded(String),
}
