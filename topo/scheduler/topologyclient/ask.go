package topologyclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// Bounds on a tree that is believed.
const (
	maxDepth    = 16
	maxElements = 1 << 20
	maxName     = 253
)

// answer is what came of a question.
type answer struct {
	groups    []v1alpha1.Group
	tag       string
	unchanged bool
}

// ask asks once. tag is that of the map at hand, empty without one.
func (f *Feed) ask(ctx context.Context, tag string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.options.URL, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Accept", "application/json")
	if tag != "" {
		request.Header.Set("If-None-Match", tag)
	}
	asker, err := f.authorize(request)
	if err != nil {
		return answer{}, err
	}
	response, err := asker.Do(request)
	if err != nil {
		return answer{}, cause(ctx, err)
	}
	defer response.Body.Close()
	switch kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); {
	case response.StatusCode == http.StatusNotModified && tag != "":
		return answer{tag: tag, unchanged: true}, nil
	case response.StatusCode != http.StatusOK:
		return answer{}, fmt.Errorf("it answers %d %s", response.StatusCode, http.StatusText(response.StatusCode))
	case kind != "application/json":
		return answer{}, fmt.Errorf("it answers %.60q, not application/json", response.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, f.options.MaxBytes+1))
	switch {
	case err != nil:
		return answer{}, cause(ctx, err)
	case int64(len(body)) > f.options.MaxBytes:
		return answer{}, fmt.Errorf("it answers more than %d bytes", f.options.MaxBytes)
	}
	groups, err := Decode(body)
	if err != nil {
		return answer{}, err
	}
	return answer{groups: groups, tag: response.Header.Get("ETag")}, nil
}

// Decode reads an answer of GET /node_group, and refuses as a whole what is no
// tree of groups: no names, nodes with children or in two places, too deep or
// too large; and what nobody could plan by: groups in two places, kinds that
// contain each other.
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
	// Now, since who plans by it later has no other map any more.
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
		return errors.New("no whole answer in time")
	}
	return err
}
