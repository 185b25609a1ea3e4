package httpapi

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
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

// send sends a document in the variant that the client takes, unless it has it.
func (s *Server) send(w http.ResponseWriter, r *http.Request, contentType string, d *document) {
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	packed, tag := acceptsGzip(r.Header), d.tag
	if packed {
		tag = strings.TrimSuffix(tag, `"`) + gzipped + `"`
	}
	h.Set("ETag", tag)
	if matches(r.Header, d.tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", contentType)
	var body io.Reader = bytes.NewReader(d.gzip)
	size := int64(len(d.gzip))
	if packed {
		h.Set("Content-Encoding", "gzip")
	} else {
		size = int64(binary.LittleEndian.Uint32(d.gzip[len(d.gzip)-4:])) // RFC 1952: before compression.
		var err error
		if body, err = gzip.NewReader(body); err != nil {
			s.failed(w, r, err)
			return
		}
	}
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	if r.Method != http.MethodHead {
		_, _ = io.CopyN(w, body, size) // An error means that the client is gone.
	}
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
