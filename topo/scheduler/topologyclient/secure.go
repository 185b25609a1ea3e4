package topologyclient

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// maxFile bounds a file with authorities or with a token.
const maxFile = 1 << 20

// client is one that follows nobody elsewhere: the token is for topo-master.
func client(authorities *x509.CertPool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// authorize gives a question its token, and says who asks it.
func (f *Feed) authorize(question *http.Request) (*http.Client, error) {
	if f.options.TokenFile != "" {
		text, err := readFile(f.options.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		token := strings.TrimSpace(string(text))
		if token == "" {
			return nil, errors.New("token: the file is empty")
		}
		question.Header.Set("Authorization", "Bearer "+token)
	}
	if f.options.CAFile == "" {
		return f.options.Client, nil
	}
	text, err := readFile(f.options.CAFile)
	if err != nil {
		return nil, fmt.Errorf("authorities: %w", err)
	}
	if f.secured != nil && bytes.Equal(text, f.pem) {
		return f.secured, nil
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("authorities: %s has no certificate", f.options.CAFile)
	}
	if f.secured != nil {
		f.secured.CloseIdleConnections()
	}
	f.secured, f.pem = client(authorities), text
	return f.secured, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxFile)
	}
	return text, err
}
