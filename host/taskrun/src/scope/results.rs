//! Reading of the results that are left out of the conversation.

use std::sync::Arc;

use super::CallScope;

/// Most bytes that are read at once: as many as a result may have unless the policy says otherwise.
pub const RESULT_PART_BYTES_MAX: usize = 1 << 20;
/// Most different results that one call reads: each is read from the run's journal as a whole.
pub const RESULTS_READ_MAX: u32 = 64;

impl CallScope {
    /// Part of a result of the run, or of the messages that are left out of what the call was shown,
    /// by the digest of its bytes: those from `offset`, at most `max` of them and at most
    /// [`RESULT_PART_BYTES_MAX`]; empty at the end. Only a plan step reads any. The bytes follow
    /// from the name, so nothing is recorded.
    ///
    /// # Errors
    /// Why there is nothing, in words.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn result_part(&self, hash: &str, offset: u64, max: u32) -> Result<Vec<u8>, String> {
        let whole = self.whole_result(hash).await?;
        let from = usize::try_from(offset).map_or(whole.len(), |from| from.min(whole.len()));
        let most = if max == 0 { RESULT_PART_BYTES_MAX } else { max as usize };
        let part = most.min(RESULT_PART_BYTES_MAX).min(whole.len() - from);
        Ok(whole[from..from + part].to_vec())
    }

    async fn whole_result(&self, hash: &str) -> Result<Arc<[u8]>, String> {
        let access = self.parts.runs.as_ref().filter(|_| self.is_journalled());
        let access = access.ok_or("only a plan step reads results")?;
        let left_out = self.parts.services.left_out.as_ref();
        if let Some(left_out) = left_out.filter(|whole| whole.reference().hash == hash) {
            return Ok(Arc::clone(left_out.bytes()));
        }
        if let Some(known) = self.known_result(hash)? {
            return Ok(known);
        }
        let none = "no result of this run has that hash";
        let find = async {
            match self.parts.services.results.place(hash).await {
                Some(place) => access.runs.result(&access.caller, hash, place).await,
                None => Ok(None),
            }
        };
        let found = tokio::select! {
            biased;
            () = self.parts.stop.asked() => return Err("the run is being stopped".to_owned()),
            found = find => found,
        };
        let bytes = found.map_err(|error| error.to_string())?.ok_or(none)?;
        self.open().result = Some((hash.to_owned(), Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// The result if it is the one that was read last; otherwise it is one more to look for.
    fn known_result(&self, hash: &str) -> Result<Option<Arc<[u8]>>, String> {
        let mut open = self.open();
        if let Some((_, bytes)) = open.result.as_ref().filter(|(known, _)| known == hash) {
            return Ok(Some(Arc::clone(bytes)));
        }
        if open.results >= RESULTS_READ_MAX {
            return Err(format!("a step reads at most {RESULTS_READ_MAX} results"));
        }
        open.results += 1;
        Ok(None)
    }
}
