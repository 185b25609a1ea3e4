package topo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// gangs lists the pods that run together or not at all.
func (c *command) gangs(ctx context.Context) error {
	all, err := c.askGangs(ctx)
	if err != nil {
		return err
	}
	if all.Unwatched {
		return errors.New("topo-master watches no pods (--count-pods=false), and so knows no gangs")
	}
	old := ""
	if all.StaleSince != nil {
		old = stale(*all.StaleSince)
	}
	if len(all.Gangs) == 0 {
		return c.write("No pod is in a gang.\n" + old)
	}
	rows := [][]string{{"NAMESPACE", "NAME", "STATE", "PODS", "GPUS", "GROUP", "NODES", "SINCE", "WHY"}}
	for i := range all.Gangs {
		g := &all.Gangs[i]
		group, since := "-", ""
		if g.Group != nil {
			group = g.Group.Name
		}
		if !g.Since.IsZero() {
			since = at(g.Since)
		}
		rows = append(rows, []string{
			g.Namespace, g.Name, string(g.State), fmt.Sprintf("%d of %d", g.Running, g.Members), fmt.Sprint(g.GPUs), group,
			nodes(g.Nodes), since, refusal(g),
		})
	}
	return c.write(cli.Table(rows, 2) + old)
}

func (c *command) askGangs(ctx context.Context) (*snapshot.Gangs, error) {
	body, err := c.from.get(ctx, "/v1/gangs", "")
	if err != nil {
		return nil, err
	}
	var all snapshot.Gangs
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, fmt.Errorf("read topo-master's answer: %w", err)
	}
	return &all, nil
}

// maxNodes is the longest list of nodes in a row, in characters.
const maxNodes = 48

// nodes are names in short: su2-dgx[1-8].
func nodes(names []string) string {
	if len(names) == 0 {
		return "-"
	}
	text := export.Hostlist(names)
	if utf8.RuneCountInString(text) > maxNodes {
		return fmt.Sprint(len(names))
	}
	return text
}

// refusal is why a gang is not further, and since when it is refused.
func refusal(g *snapshot.Gang) string {
	if g.RejectedSince.IsZero() || g.RejectedSince.Equal(g.Since) {
		return g.Reason
	}
	return g.Reason + ", since " + at(g.RejectedSince)
}

// guests is which gangs are on which node.
type guests map[string][]*snapshot.Gang

func guestsOf(list []snapshot.Gang) guests {
	on := guests{}
	for i := range list {
		for _, node := range list[i].Nodes {
			on[node] = append(on[node], &list[i])
		}
	}
	return on
}

// in names the gangs on a node or, for a group of nodes, those in it, with how
// many of their nodes are if that is not all.
func (g guests) in(e *snapshot.Element) string {
	if e.Nodes == nil {
		return few(g[e.Name], func(*snapshot.Gang) string { return "" })
	}
	count := map[*snapshot.Gang]int{}
	for i := range e.Child {
		if e.Child[i].Nodes == nil {
			for _, gang := range g[e.Child[i].Name] {
				count[gang]++
			}
		}
	}
	list := make([]*snapshot.Gang, 0, len(count))
	for gang := range count {
		list = append(list, gang)
	}
	return few(list, func(gang *snapshot.Gang) string {
		if n := count[gang]; n < len(gang.Nodes) {
			return fmt.Sprintf(" (%d of %d nodes)", n, len(gang.Nodes))
		}
		return ""
	})
}

// maxGuests is how many gangs a row names.
const maxGuests = 3

func few(list []*snapshot.Gang, more func(*snapshot.Gang) string) string {
	slices.SortFunc(list, func(a, b *snapshot.Gang) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	var out []string
	for _, g := range list[:min(len(list), maxGuests)] {
		out = append(out, g.Namespace+"/"+g.Name+more(g))
	}
	if rest := len(list) - maxGuests; rest > 0 {
		out = append(out, fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(out, ", ")
}

// stale warns of what is not of now.
func stale(since time.Time) string {
	return "STALE: topo-master has not heard from the API server since " + at(since) + "\n"
}
