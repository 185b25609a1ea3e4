package fabric

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/fabrictest"
)

// Answer is the object that `heddle fabric test` prints.
type Answer struct {
	// Nodes are the nodes with results, Skipped the others with the reason.
	Nodes   []string          `json:"nodes"`
	Skipped map[string]string `json:"skipped,omitempty"`
	Ports   int               `json:"ports"`
	Rounds  int               `json:"rounds"`
	// Seconds is the least duration of a test that was only planned.
	Seconds int `json:"seconds,omitempty"`
	// Incomplete is true if the test ended before the last round.
	Incomplete bool               `json:"incomplete,omitempty"`
	Faults     []fabrictest.Fault `json:"faults"`
	// Unexplained are slow flows whose every part works in others.
	Unexplained []string            `json:"unexplained,omitempty"`
	Collective  *fabrictest.Outcome `json:"collective,omitempty"`
}

// slowest is the fault of a slow collective.
func slowest(c *fabrictest.Outcome, limit float64) fabrictest.Fault {
	f := fabrictest.Fault{
		Kind: "node", Where: c.Nodes, What: "collective", Value: fmt.Sprintf("%.1f GB/s", c.Whole), Flows: c.Runs,
		Limit: fmt.Sprintf("%.1f GB/s", cmp.Or(limit, fabrictest.MinBandwidth*c.Best)),
	}
	switch {
	case c.Rail != nil:
		f.Kind, f.Where = fabrictest.HCA, []string{fmt.Sprintf("%s rail %d", c.Nodes[0], *c.Rail)}
	case len(c.Nodes) > 1:
		f.Kind, f.Where = "links", []string{"between the halves of " + cli.First(c.Nodes, 4, ", ")}
	}
	return f
}

// plan describes a test without running it.
func (t *test) plan() *Answer {
	var ports []fabrictest.Port
	for _, n := range t.nodes {
		ports = append(ports, n.ports...)
	}
	pairs := fabrictest.NewTest(ports, t.o.uplinks)
	t.answer.add(pairs)
	t.answer.Rounds, t.answer.Seconds = pairs.Left(), pairs.Left()*(t.o.seconds+1)
	return &t.answer
}

// add takes the results of the pairs.
func (a *Answer) add(t *fabrictest.Test) {
	for i := range t.Ports {
		if !slices.Contains(a.Nodes, t.Ports[i].Node) {
			a.Nodes = append(a.Nodes, t.Ports[i].Node)
		}
	}
	faults, unexplained := t.Faults()
	a.Ports, a.Faults = len(t.Ports), append(a.Faults, faults...)
	for _, f := range unexplained {
		a.Unexplained = append(a.Unexplained, t.Ports[f.From].String()+" to "+t.Ports[f.To].String())
	}
}

func (a *Answer) text() string {
	var b strings.Builder
	if a.Seconds > 0 {
		fmt.Fprintf(&b, "%s with %s: %s, at least %s.\nNothing was created.\n", cli.Count(len(a.Nodes), "node"),
			cli.Count(a.Ports, "port"), cli.Count(a.Rounds, "round"), time.Duration(a.Seconds)*time.Second)
		return b.String()
	}
	if len(a.Faults) > 0 {
		rows := [][]string{{"SLOW", "WHERE", "WHAT", "VALUE", "LIMIT", "FLOWS"}}
		for i := range a.Faults {
			f := &a.Faults[i]
			rows = append(rows, []string{
				string(f.Kind), strings.Join(f.Where, " or "), f.What, f.Value, f.Limit, fmt.Sprint(f.Flows),
			})
		}
		b.WriteString(cli.Table(rows) + "\n")
	}
	for _, flow := range a.Unexplained {
		fmt.Fprintf(&b, "Slow, but each part works in other flows: %s\n", flow)
	}
	for _, node := range slices.Sorted(maps.Keys(a.Skipped)) {
		fmt.Fprintf(&b, "Not tested: %s: %s\n", node, a.Skipped[node])
	}
	if c := a.Collective; c != nil {
		fmt.Fprintf(&b, "Collective: %.1f GB/s on all nodes, %s.\n", c.Whole, cli.Count(c.Runs, "run"))
	}
	if a.Incomplete {
		b.WriteString("The test ended before the last round: see --max-duration.\n")
	}
	fmt.Fprintf(&b, "%s with %s, %s: %s.\n", cli.Count(len(a.Nodes), "node"), cli.Count(a.Ports, "port"),
		cli.Count(a.Rounds, "round"), cli.Count(len(a.Faults), "slow part"))
	return b.String()
}

// write adds the results to the NodeTopologies, and labels the Nodes if that was asked for.
func (t *test) write(ctx context.Context, pairs *fabrictest.Test) error {
	at := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	results := pairs.Results(at)
	var faults []error
	for _, n := range t.nodes {
		least := int32(-1) // Of the ports that were measured.
		for i := range pairs.Ports {
			p, r := &pairs.Ports[i], &results[i]
			if p.Node != n.name || r.Time.IsZero() {
				continue
			}
			r.Versions = n.versions
			n.tests = fabrictest.Record(n.tests, p, r)
			if least < 0 || r.Gbps < least {
				least = r.Gbps
			}
		}
		if least < 0 {
			continue
		}
		status := map[string]any{"status": map[string]any{"tests": n.tests}}
		err := t.patch(ctx, nodeTopologies+"/"+n.name+"/status", status)
		if err == nil && t.o.label {
			err = t.patch(ctx, "/api/v1/nodes/"+n.name, map[string]any{"metadata": map[string]any{"labels": map[string]string{
				wellknown.FabricTested: at.Format(time.DateOnly), wellknown.FabricBandwidth: fmt.Sprint(least),
			}}})
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("write the results of node %s: %w", n.name, err))
		}
	}
	return errors.Join(faults...)
}

func (t *test) patch(ctx context.Context, path string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return t.client.Patch(types.MergePatchType).AbsPath(path).Body(b).Do(ctx).Error()
}
