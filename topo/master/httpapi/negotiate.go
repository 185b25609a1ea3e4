package httpapi

import (
	"io"
	"net/http"
	"strconv"
	"strings"
)

// gzipped marks the entity tag of a compressed answer: other bytes need another
// strong tag (RFC 9110, 8.8.3.3).
const gzipped = "-gzip"

// jsonType is the content type of most answers.
const jsonType = "application/json"

// negotiate sets the headers of an answer. tag is quoted and the same for all
// variants. packed means to compress; fresh is false if the client has the
// answer already: then the response is written.
func negotiate(w http.ResponseWriter, r *http.Request, tag, contentType string) (packed, fresh bool) {
	packed = acceptsGzip(r.Header)
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	if packed {
		h.Set("ETag", strings.TrimSuffix(tag, `"`)+gzipped+`"`)
	} else {
		h.Set("ETag", tag)
	}
	if matches(r.Header, tag) {
		w.WriteHeader(http.StatusNotModified)
		return packed, false
	}
	h.Set("Content-Type", contentType)
	if packed {
		h.Set("Content-Encoding", "gzip")
	}
	return packed, true
}

// acceptsGzip reads Accept-Encoding, in which a weight of 0 excludes a coding.
func acceptsGzip(h http.Header) bool {
	for part := range strings.SplitSeq(strings.Join(h["Accept-Encoding"], ","), ",") {
		coding, weight, weighed := strings.Cut(strings.ReplaceAll(part, " ", ""), ";")
		if strings.EqualFold(coding, "gzip") {
			return !weighed || strings.Trim(weight, "qQ=0.") != ""
		}
	}
	return false
}

// matches reads If-None-Match, in which any variant of the same answer will do.
func matches(h http.Header, tag string) bool {
	for part := range strings.SplitSeq(strings.Join(h["If-None-Match"], ","), ",") {
		known := strings.Trim(strings.TrimPrefix(strings.TrimSpace(part), "W/"), `"`)
		if known == "*" || strings.TrimSuffix(known, gzipped) == strings.Trim(tag, `"`) {
			return true
		}
	}
	return false
}

// send writes a body of that size.
func send(w http.ResponseWriter, r *http.Request, body io.Reader, size int64) {
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	if r.Method != http.MethodHead {
		_, _ = io.Copy(w, body) // An error means that the client is gone.
	}
}
