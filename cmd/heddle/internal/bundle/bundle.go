// Package bundle reads and writes the file of `heddle support-bundle`: a tar.gz of bounded size,
// without anything that looks like a credential. It does not choose the content.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Names of files that commands read back.
const (
	Machine   = "machine.json"
	Node      = "node.json"
	ConfigDir = "config/"
)

const (
	// MaxFile bounds the bytes kept of one file, and maxTotal of all files.
	MaxFile  = 1 << 20
	maxTotal = 32 << 20
	maxFiles = 500
)

// Writer writes a bundle.
type Writer struct {
	tar   *tar.Writer
	zip   *gzip.Writer
	made  time.Time
	total int
	// Left are the files that were cut or left out, and why.
	Left []string
}

// NewWriter begins a bundle.
func NewWriter(w io.Writer, made time.Time) *Writer {
	zip := gzip.NewWriter(w)
	return &Writer{tar: tar.NewWriter(zip), zip: zip, made: made}
}

// Add adds a file. A file that is too long loses its beginning, since the end of a log matters
// most; a machine is complete or missing.
func (w *Writer) Add(name string, content []byte) error {
	switch {
	case name == Machine && len(content) > maxTotal/2, w.total+min(len(content), MaxFile) > maxTotal:
		w.Left = append(w.Left, name+": the bundle is full")
		return nil
	case len(content) > MaxFile && name != Machine:
		w.Left = append(w.Left, fmt.Sprintf("%s: the first %d bytes", name, len(content)-MaxFile))
		content = content[len(content)-MaxFile:]
	}
	content = Redact(content)
	w.total += len(content)
	header := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: w.made}
	if err := w.tar.WriteHeader(header); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if _, err := w.tar.Write(content); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Close ends the bundle.
func (w *Writer) Close() error { return errors.Join(w.tar.Close(), w.zip.Close()) }

// Redact replaces what looks like a credential: heddle's daemons log none, but an
// address that an operator configured may have one, as may what another component
// answered.
func Redact(content []byte) []byte {
	const value = `("(\\.|[^"\\])*"|[^\s",;&}]+)`
	lower := bytes.ToLower(content)
	for _, p := range []struct {
		// Every match contains one of the words, in lower case, which are quick to search for.
		words   []string
		pattern string
	}{
		// user:password@ in an address
		{[]string{"://"}, `(://)[^/@\s"']+(@)`},
		{[]string{"bearer"}, `(?i)(bearer\s+)` + value + `()`},
		{
			secretWords(),
			`(?i)((?:` + strings.Join(secretWords(), "|") + `)\\?"?\s*[:=]\s*)` + value + `()`,
		},
		// JSON Web Tokens
		{[]string{"eyj"}, `()eyJ[\w-]{10,}\.[\w-]+\.[\w-]+()`},
		{[]string{"-----begin"}, `()-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*-----END [A-Z ]*PRIVATE KEY-----()`},
	} {
		if !slices.ContainsFunc(p.words, func(word string) bool { return bytes.Contains(lower, []byte(word)) }) {
			continue
		}
		expression := regexp.MustCompile(p.pattern)
		content = expression.ReplaceAll(content, fmt.Appendf(nil, "${1}REDACTED${%d}", expression.NumSubexp()))
	}
	return content
}

func secretWords() []string {
	return []string{"password", "passwd", "secret", "token", "authorization", "api_key", "apikey", "m_key", "mkey"}
}

// Read reads the files of a bundle.
func Read(path string) (map[string][]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	files, err := read(file)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", path, err)
	}
	return files, nil
}

func read(r io.Reader) (map[string][]byte, error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	files, bounded := map[string][]byte{}, &io.LimitedReader{R: zip, N: 2 * maxTotal}
	for archive := tar.NewReader(bounded); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err == nil && len(files) == maxFiles {
			err = errors.New("too many files")
		}
		if err != nil {
			return nil, err
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			return nil, err
		}
	}
}
