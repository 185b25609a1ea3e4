package httpapi

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Certificate is the server's, from two files that may be replaced at any time.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	// mu guards the rest.
	mu      sync.Mutex
	good    *tls.Certificate
	version [2]time.Time
	looked  time.Time
}

// lookAgain is the time between two looks at the files.
const lookAgain = 10 * time.Second

// NewCertificate reads the files for the first time; then a bad one is an
// error.
func NewCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.read(); err != nil {
		return nil, err
	}
	c.looked = time.Now()
	return c, nil
}

// Config is for a server of HTTP/2 and HTTP/1.1.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil },
	}
}

// current is the last good certificate, read again if the files changed.
func (c *Certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < lookAgain {
		return c.good
	}
	c.looked = time.Now()
	if err := c.read(); err != nil {
		c.log.Warn("certificate cannot be read, the last one stays", "err", err)
	}
	return c.good
}

func (c *Certificate) read() error {
	var version [2]time.Time
	for i, file := range [2]string{c.certFile, c.keyFile} {
		info, err := os.Stat(file)
		if err != nil {
			return fmt.Errorf("read certificate: %w", err)
		}
		version[i] = info.ModTime()
	}
	if c.good != nil && version == c.version {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read certificate %s: %w", c.certFile, err)
	}
	c.good, c.version = &pair, version
	return nil
}
