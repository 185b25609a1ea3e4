package supportbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// maxFile bounds the bytes kept of one file, and maxBundle those of all.
	maxFile, maxBundle = 1 << 20, 32 << 20
	// machineFile and configDir are read by --machine and --config.
	machineFile, configDir = "machine.json", "config/"
)

// files is the content of a bundle: of bounded size, without anything that looks like a credential.
type files struct {
	content map[string][]byte
	total   int
	// left are the files that were cut or left out, and why.
	left []string
}

// add adds a file. A file that is too long loses its beginning, since the end of a log matters most; a machine is
// complete or missing.
func (f *files) add(name string, content []byte) {
	whole := name == machineFile
	switch {
	case whole && len(content) > maxBundle/2, f.total+min(len(content), maxFile) > maxBundle:
		f.left = append(f.left, name+": the bundle is full")
		return
	case len(content) > maxFile && !whole:
		f.left = append(f.left, fmt.Sprintf("%s: the first %d bytes", name, len(content)-maxFile))
		content = content[len(content)-maxFile:]
	}
	f.content[name] = redact(content)
	f.total += len(f.content[name])
}

func (f *files) lacks(name string, err error) {
	f.left = append(f.left, name+": "+string(redact([]byte(err.Error()))))
}

// write writes a tar.gz.
func (f *files) write(to io.Writer, made time.Time) error {
	zip := gzip.NewWriter(to)
	archive := tar.NewWriter(zip)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(f.content)) {
		content := f.content[name]
		header := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: made}
		errs = append(errs, archive.WriteHeader(header))
		_, err := archive.Write(content)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, archive.Close(), zip.Close())...)
}

// redact replaces what looks like a credential: heddle's daemons log none, but an
// address that an operator configured may have one, as may what another component
// answered.
func redact(content []byte) []byte {
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
