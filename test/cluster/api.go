//go:build linux

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// lazyClient makes the HTTP client on first use: the certificates may not be
// there when the Cluster value is made.
func lazyClient(dir string) func() (*http.Client, error) {
	return sync.OnceValues(func() (*http.Client, error) {
		pki := filepath.Join(dir, "pki")
		cert, err := tls.LoadX509KeyPair(filepath.Join(pki, "admin.crt"), filepath.Join(pki, "admin.key"))
		if err != nil {
			return nil, fmt.Errorf("load client certificate: %w", err)
		}
		ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
		if err != nil {
			return nil, fmt.Errorf("read cluster authority: %w", err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(ca)
		return &http.Client{
			Timeout: 30 * time.Second,
			Transport: &http.Transport{
				TLSClientConfig: &tls.Config{
					RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12,
				},
				IdleConnTimeout: 5 * time.Second,
			},
		}, nil
	})
}

// statusError is an answer of the API server other than success.
type statusError struct {
	code int
	body string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.body) }

func (c *Cluster) get(ctx context.Context, path string, out any) error {
	return c.do(ctx, http.MethodGet, path, nil, out)
}

// do sends one request. Body and answer are JSON; either may be nil.
func (c *Cluster) do(ctx context.Context, method, path string, in, out any) error {
	client, err := c.http()
	if err != nil {
		return err
	}
	port, err := os.ReadFile(filepath.Join(c.state.Dir, "run", "port"))
	if err != nil {
		return fmt.Errorf("read port: %w", err)
	}
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	url := "https://127.0.0.1:" + strings.TrimSpace(string(port)) + path
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %w", method, path, &statusError{resp.StatusCode, tail(string(data), 500)})
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

// node is the part of a Node object that is looked at.
type node struct {
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

func (c *Cluster) nodeReady(ctx context.Context, name string) (bool, error) {
	var n node
	if err := c.get(ctx, "/api/v1/nodes/"+name, &n); err != nil {
		return false, err
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == "Ready" {
			return cond.Status == "True", nil
		}
	}
	return false, nil
}

// WaitNodeReady waits until a node, real or simulated, is Ready.
func (c *Cluster) WaitNodeReady(ctx context.Context, name string) error {
	var last error
	err := poll(ctx, 50*time.Millisecond, func() (bool, error) {
		var ok bool
		ok, last = c.nodeReady(ctx, name)
		return ok, nil
	})
	if err != nil {
		return fmt.Errorf("wait for node %s: %w", name, errors.Join(err, last))
	}
	return nil
}
