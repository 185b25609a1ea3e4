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
	Unexplained []string    `json:"unexplained,omitempty"`
	Collective  *Collective `json:"collective,omitempty"`
}

// Collective is the result of a collective.
type Collective struct {
	// GBps is the bus bandwidth of all nodes, Best the best of a run, in GB/s.
	GBps float64 `json:"gbps"`
	Best float64 `json:"best"`
	Runs int     `json:"runs"`
	// Slow has the slow node, or nodes between which it is slow; empty if it is not slow or everywhere.
	Slow []string `json:"slow,omitempty"`
	// Rail is the slow rail of the node.
	Rail *int32 `json:"rail,omitempty"`
}

func (c *Collective) fault(limit float64) fabrictest.Fault {
	f := fabrictest.Fault{
		Kind: "node", Where: c.Slow, What: "collective", Value: fmt.Sprintf("%.1f GB/s", c.GBps), Flows: c.Runs,
		Limit: fmt.Sprintf("%.1f GB/s", cmp.Or(limit, fabrictest.MinBandwidth*c.Best)),
	}
	switch {
	case c.Rail != nil:
		f.Kind, f.Where = fabrictest.HCA, []string{fmt.Sprintf("%s rail %d", c.Slow[0], *c.Rail)}
	case len(c.Slow) > 1:
		f.Kind, f.Where = "links", []string{"between the halves of " + cli.First(c.Slow, 4, ", ")}
	}
	return f
}

// plan describes a test without running it.
func (t *test) plan() *Answer {
	var ports []fabrictest.Port
	for _, n := range t.nodes {
		ports = append(ports, n.ports...)
	}
	pairs := fabrictest.NewTest(ports, fabrictest.DefaultPlan(t.o.uplinks))
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
		fmt.Fprintf(&b, "Collective: %.1f GB/s on all nodes, %s.\n", c.GBps, cli.Count(c.Runs, "run"))
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
	var faults []error
	for _, n := range t.nodes {
		tests := pairs.Record(n.tests, n.name, n.versions, at)
		least := int32(-1) // Of the ports that were measured.
		for i := range tests {
			if r := &tests[i].Results[0]; r.Time.Equal(&at) && (least < 0 || r.Gbps < least) {
				least = r.Gbps
			}
		}
		if least < 0 {
			continue
		}
		status := map[string]any{"status": map[string]any{"tests": tests}}
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
