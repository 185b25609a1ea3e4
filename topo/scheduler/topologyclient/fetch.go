package topologyclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// Bounds on an answer, and on the files with authorities and with a token.
const (
	maxDepth    = 16
	maxElements = 1 << 20
	maxName     = 253
	maxFile     = 1 << 20
)

type answer struct {
	groups      []v1alpha1.Group
	etag        string
	notModified bool
}

// fetch asks once. etag is that of the current tree, empty without one.
func (c *Client) fetch(ctx context.Context, etag string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.options.URL, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Accept", "application/json")
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	client, err := c.authorize(request)
	if err != nil {
		return answer{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, cause(ctx, err)
	}
	defer response.Body.Close()
	switch kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); {
	case response.StatusCode == http.StatusNotModified && etag != "":
		return answer{etag: etag, notModified: true}, nil
	case response.StatusCode != http.StatusOK:
		return answer{}, fmt.Errorf("status %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	case kind != "application/json":
		return answer{}, fmt.Errorf("content type %.60q, want application/json", response.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, c.options.MaxBytes+1))
	switch {
	case err != nil:
		return answer{}, cause(ctx, err)
	case int64(len(body)) > c.options.MaxBytes:
		return answer{}, fmt.Errorf("answer has more than %d bytes", c.options.MaxBytes)
	}
	groups, err := Decode(body)
	if err != nil {
		return answer{}, err
	}
	return answer{groups: groups, etag: response.Header.Get("ETag")}, nil
}

// Decode reads an answer of GET /node_group. It rejects the whole answer if it is
// no tree of groups (no names, nodes with children or in two places, too deep or
// too large), or none to plan by (groups in two places, kinds that contain each
// other).
func Decode(body []byte) ([]v1alpha1.Group, error) {
	var groups []v1alpha1.Group
	if err := json.Unmarshal(body, &groups); err != nil {
		return nil, fmt.Errorf("node groups: %w", err)
	}
	if groups == nil {
		groups = []v1alpha1.Group{}
	}
	c := checker{nodes: make(map[string]bool)}
	if err := c.check(groups, 1); err != nil {
		return nil, fmt.Errorf("node groups: %w", err)
	}
	// The planner has no other tree to fall back to once this one is accepted.
	if _, err := placement.New(groups); err != nil {
		return nil, fmt.Errorf("node groups: %w", err)
	}
	return groups, nil
}

type checker struct {
	nodes    map[string]bool
	elements int
}

func (c *checker) check(groups []v1alpha1.Group, depth int) error {
	if c.elements += len(groups); c.elements > maxElements {
		return fmt.Errorf("more than %d elements", maxElements)
	}
	if depth > maxDepth && len(groups) > 0 {
		return fmt.Errorf("deeper than %d levels", maxDepth)
	}
	for i := range groups {
		g := &groups[i]
		switch {
		case g.Name == "" || len(g.Name) > maxName || g.Kind == "" || len(g.Kind) > maxName:
			return fmt.Errorf("element %.60q of kind %.60q: no name and kind of 1 to %d bytes", g.Name, g.Kind, maxName)
		case g.Kind != v1alpha1.KindNode:
			if err := c.check(g.Child, depth+1); err != nil {
				return err
			}
		case len(g.Child) > 0:
			return fmt.Errorf("node %q has children", g.Name)
		case c.nodes[g.Name]:
			return fmt.Errorf("node %q is in two places", g.Name)
		default:
			c.nodes[g.Name] = true
		}
	}
	return nil
}

// cause is an error without addresses and ports of single connections: equal
// failures read alike.
func cause(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("no complete answer in time")
	}
	return err
}

// httpClient follows no redirect: the token is for topo-master. A client for a single
// request keeps no connection.
func httpClient(authorities *x509.CertPool, single bool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true, DisableKeepAlives: single,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// authorize adds the token to a request, and returns the client to send it with.
func (c *Client) authorize(request *http.Request) (*http.Client, error) {
	if c.options.TokenFile != "" {
		text, err := readFile(c.options.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		token := strings.TrimSpace(string(text))
		if token == "" {
			return nil, errors.New("token: the file is empty")
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if c.options.CAFile == "" {
		return c.options.HTTP, nil
	}
	text, err := readFile(c.options.CAFile)
	if err != nil {
		return nil, fmt.Errorf("authorities: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("authorities: %s has no certificate", c.options.CAFile)
	}
	return httpClient(authorities, true), nil
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
