// Package certificate keeps a server's certificate current.
//
// It is apart from httpapi because Kubernetes' reader of changing files comes with
// every API of Kubernetes, which a program that serves plain HTTP does without.
package certificate

import (
	"context"
	"crypto/tls"
	"fmt"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// Certificate is the server's, read again when its files change. After a file
// that cannot be used the last good one stays.
type Certificate struct {
	files *dynamiccertificates.DynamicCertKeyPairContent
}

// Load reads the files for the first time; then a bad one is an
// error.
func Load(certFile, keyFile string) (*Certificate, error) {
	files, err := dynamiccertificates.NewDynamicServingContentFromFiles("heddle-topo-master", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate %s: %w", certFile, err)
	}
	return &Certificate{files}, nil
}

// Run watches the files until ctx ends.
func (c *Certificate) Run(ctx context.Context) error {
	c.files.Run(ctx, 1)
	return nil
}

// Config is for a server of HTTP/2 and HTTP/1.1.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, err := tls.X509KeyPair(c.files.CurrentCertKeyContent())
			return &pair, err
		},
	}
}
