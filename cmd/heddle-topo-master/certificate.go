package main

import (
	"context"
	"crypto/tls"
	"fmt"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// certificate is the server's, read again when its files change. After an invalid file
// the last good one stays.
type certificate struct {
	files *dynamiccertificates.DynamicCertKeyPairContent
}

// loadCertificate reads the files for the first time.
func loadCertificate(certFile, keyFile string) (*certificate, error) {
	files, err := dynamiccertificates.NewDynamicServingContentFromFiles("heddle-topo-master", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", certFile, err)
	}
	return &certificate{files}, nil
}

// Run watches the files until ctx ends.
func (c *certificate) Run(ctx context.Context) error {
	c.files.Run(ctx, 1)
	return nil
}

// Config is for a server of HTTP/2 and HTTP/1.1.
func (c *certificate) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, err := tls.X509KeyPair(c.files.CurrentCertKeyContent())
			return &pair, err
		},
	}
}
