// Package topologyclient keeps the last good topology tree: what topo-master
// answers to GET /node_group.
//
// It owns the polling, the validation of answers, and how old a tree may grow. It
// polls in the background only: a scheduling cycle reads the last good tree and
// never waits for the network. What the groups mean is topo/placement's.
package topologyclient

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// Defaults of Options.
const (
	DefaultInterval = 5 * time.Second
	DefaultMaxAge   = 5 * time.Minute
)

const (
	// timeout bounds one exchange, the body included.
	timeout = 10 * time.Second
	// firstTree is how long the first tree is awaited at most, from the client's start:
	// topo-master may start at the same time, as after an upgrade of both.
	firstTree = time.Minute
	// maxAnswer is the longest answer that is read, in bytes: ten times what 100,000
	// nodes need.
	maxAnswer = 64 << 20
	// maxElements is how many groups and nodes an answer has at most, five times what 100,000 nodes
	// need. Decoded, one takes 72 bytes, so that an answer of empty ones would take gigabytes. It is
	// half of what [placement.New] takes: the scheduler's nodes that are in no group come on top.
	maxElements = 1 << 19
)

// Options of a Client.
type Options struct {
	// URL is topo-master's GET /node_group. Without it there is never a tree.
	URL string
	// Interval is the time from one answer to the next request.
	Interval time.Duration
	// MaxAge is how long a tree is fresh after topo-master confirmed it last.
	MaxAge time.Duration
	// CAFile has the certificate authorities for topo-master in PEM; default those of
	// the system. TokenFile has the bearer token; default none. Both are read for
	// every request, since they are renewed.
	CAFile, TokenFile string
	// HTTP is the client to use; nil makes a new client for every request.
	HTTP *http.Client
	Log  *slog.Logger
}

// Tree is the last good answer of topo-master.
type Tree struct {
	// Groups must not be changed; nil before the first answer.
	Groups []v1alpha1.Group
	// Domains are the NVLink domains that cross the groups; they must not be changed.
	Domains []v1alpha1.Group
	// Generation counts the different trees that there were, from 1.
	Generation uint64
	// Confirmed is when topo-master confirmed last that this is the tree.
	Confirmed time.Time
	maxAge    time.Duration
}

// Fresh reports whether a tree is young enough to plan by.
func (t *Tree) Fresh(now time.Time) bool { return t.Generation > 0 && now.Sub(t.Confirmed) <= t.maxAge }

// Client polls topo-master.
type Client struct {
	options Options
	started time.Time
	// nvlink is the URL of the tree along NVLink domains.
	nvlink string
	// etag is the tag of the tree, and crossing the tag of the NVLink domains which cross its
	// groups; only Run uses them.
	etag, crossing string

	// mu guards the fields below.
	mu   sync.Mutex
	tree Tree
	err  error
}

// New returns a client; Run polls.
func New(o Options) *Client {
	o.Interval, o.MaxAge = cmp.Or(o.Interval, DefaultInterval), cmp.Or(o.MaxAge, DefaultMaxAge)
	nvlink := o.URL + "?axis=nvlink"
	if strings.Contains(o.URL, "?") {
		nvlink = o.URL + "&axis=nvlink"
	}
	return &Client{options: o, started: time.Now(), nvlink: nvlink, tree: Tree{maxAge: o.MaxAge}}
}

// Of returns a client with a tree that is always fresh, which asks no topo-master.
func Of(groups []v1alpha1.Group) *Client {
	c := New(Options{MaxAge: math.MaxInt64})
	if len(groups) > 0 {
		c.tree.Groups, c.tree.Generation, c.tree.Confirmed = groups, 1, time.Now()
	}
	return c
}

// Configured reports whether there is a topo-master to ask.
func (c *Client) Configured() bool { return c.options.URL != "" }

// Awaited reports whether there was no tree yet, and the first one may still come: for a
// minute after the start, or for MaxAge if that is shorter.
func (c *Client) Awaited(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Configured() && c.tree.Generation == 0 && now.Sub(c.started) <= min(firstTree, c.options.MaxAge)
}

// Current returns the last good tree, and the error of the last request; nil if it was
// answered. It never waits.
func (c *Client) Current() (Tree, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tree, c.err
}

// Run polls until the context ends. An absent topo-master is a state, not an error.
func (c *Client) Run(ctx context.Context) {
	if c.Configured() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			found, err := c.fetch(ctx)
			c.update(ctx, found, err)
		}, c.options.Interval)
	}
}

// update takes over groups and domains of another tree; none confirms the last one.
func (c *Client) update(ctx context.Context, found *Tree, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && c.err == nil:
		c.options.Log.WarnContext(ctx, "cannot fetch topology from topo-master", "err", err, "url", c.options.URL)
	case err == nil && c.err != nil:
		c.options.Log.InfoContext(ctx, "topo-master answers again", "url", c.options.URL)
	}
	if c.err = err; err != nil {
		return
	}
	c.tree.Confirmed = time.Now()
	if found != nil {
		c.tree.Groups, c.tree.Domains = found.Groups, found.Domains
		c.tree.Generation++
	}
}

// fetch asks once; no tree is the current one.
func (c *Client) fetch(ctx context.Context) (*Tree, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	groups, header, err := c.ask(ctx, c.options.URL, c.etag)
	if err == nil && groups == nil && header.Get(v1alpha1.CrossingHeader) != c.crossing {
		groups, header, err = c.ask(ctx, c.options.URL, "")
	}
	if err != nil || groups == nil {
		return nil, err
	}
	found, crossing := &Tree{Groups: groups}, header.Get(v1alpha1.CrossingHeader)
	if crossing != "" {
		domains, _, err := c.ask(ctx, c.nvlink, "")
		if err != nil {
			return nil, fmt.Errorf("NVLink domains: %w", err)
		}
		found.Domains = placement.Crossing(groups, domains)
	}
	c.etag, c.crossing = header.Get("ETag"), crossing
	return found, nil
}

// ask makes one request; it returns no groups if the tag still matches.
func (c *Client) ask(ctx context.Context, from, etag string) ([]v1alpha1.Group, http.Header, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Accept", "application/json")
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	client, err := c.client()
	if err != nil {
		return nil, nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotModified && etag != "":
		return nil, response.Header, nil
	case response.StatusCode != http.StatusOK:
		return nil, nil, fmt.Errorf("status %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, nil, err
	}
	groups, err := Decode(body)
	return groups, response.Header, err
}

// Decode reads an answer of GET /node_group. It rejects the whole answer if it is
// no tree to plan by: the planner has no other one once this one is accepted.
func Decode(body []byte) ([]v1alpha1.Group, error) {
	if len(body) > maxAnswer || bytes.Count(body, []byte("{")) > maxElements {
		return nil, fmt.Errorf("node groups: more than %d bytes, or than %d groups and nodes", maxAnswer, maxElements)
	}
	var groups []v1alpha1.Group
	err := json.Unmarshal(body, &groups)
	if err == nil {
		_, err = placement.New(groups)
	}
	if err != nil {
		return nil, fmt.Errorf("node groups: %w", err)
	}
	return append([]v1alpha1.Group{}, groups...), nil // Not nil for null.
}

// client returns what to send a request with.
func (c *Client) client() (*http.Client, error) {
	if c.options.HTTP != nil {
		return c.options.HTTP, nil
	}
	transport, err := rest.TransportFor(&rest.Config{
		BearerTokenFile: c.options.TokenFile, TLSClientConfig: rest.TLSClientConfig{CAFile: c.options.CAFile},
	})
	if err != nil {
		return nil, fmt.Errorf("read token and authorities: %w", err)
	}
	// The token is for topo-master alone: redirects are not followed.
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: transport, CheckRedirect: refuse}, nil
}
