package httpapi

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// gzipped marks the entity tag of a compressed answer: other bytes need another
// strong tag (RFC 9110, 8.8.3.3).
const gzipped = "-gzip"

// jsonType is the content type of most answers.
const jsonType = "application/json"

// negotiate sets the headers of an answer. tag is quoted and the same for all
// variants. packed tells to compress; fresh is false if the client has the
// answer already, and has been told so.
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

// acceptsGzip reads Accept-Encoding.
func acceptsGzip(h http.Header) bool {
	for _, line := range h["Accept-Encoding"] {
		for part := range strings.SplitSeq(line, ",") {
			coding, parameters, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
				return !refused(parameters)
			}
		}
	}
	return false
}

// refused tells whether parameters have a weight of zero.
func refused(parameters string) bool {
	key, value, _ := strings.Cut(strings.TrimSpace(parameters), "=")
	weight, err := strconv.ParseFloat(value, 64)
	return strings.EqualFold(key, "q") && err == nil && weight == 0
}

// matches reads If-None-Match, in which any variant of the same answer will do.
func matches(h http.Header, tag string) bool {
	plain := strings.Trim(tag, `"`)
	for _, line := range h["If-None-Match"] {
		for part := range strings.SplitSeq(line, ",") {
			theirs := strings.TrimSpace(part)
			if theirs == "*" {
				return true
			}
			theirs = strings.Trim(strings.TrimPrefix(theirs, "W/"), `"`)
			if strings.TrimSuffix(theirs, gzipped) == plain {
				return true
			}
		}
	}
	return false
}

// send writes a body that is in memory.
func send(w http.ResponseWriter, r *http.Request, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // A client that went away is no concern.
	}
}

// buffers are reused between requests.
type buffers struct{ pool, writers sync.Pool }

// maxKept is the largest buffer that is kept, in bytes.
const maxKept = 1 << 20

func (b *buffers) take() *bytes.Buffer {
	if buffer, ok := b.pool.Get().(*bytes.Buffer); ok {
		buffer.Reset()
		return buffer
	}
	return &bytes.Buffer{}
}

func (b *buffers) give(buffer *bytes.Buffer) {
	if buffer.Cap() <= maxKept {
		b.pool.Put(buffer)
	}
}

// room is what a writer of long answers gathers, in bytes: the pieces of a tree
// are smaller, and each write wakes the reader.
const room = 256 << 10

func (b *buffers) writer(to io.Writer) *bufio.Writer {
	if w, ok := b.writers.Get().(*bufio.Writer); ok {
		w.Reset(to)
		return w
	}
	return bufio.NewWriterSize(to, room)
}

func (b *buffers) giveWriter(w *bufio.Writer) {
	w.Reset(nil) // It must not hold the connection.
	b.writers.Put(w)
}
