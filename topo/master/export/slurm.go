package export

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// SlurmRoot is the switch that joins several top-level groups: a job can only
// span nodes below one switch (topology.conf(5)).
const SlurmRoot = "heddle-root"

// SlurmTree writes topology.conf for topology/tree. Slurm takes a Node's name
// as the host's. Nodes in no group are left out, with a comment that names
// them.
func SlurmTree(w io.Writer, s *fabric.Snapshot) error {
	out := bufio.NewWriter(w)
	var top, alone []string
	for _, e := range s.Child {
		if e.Kind == v1alpha1.KindNode {
			alone = append(alone, e.Name)
			continue
		}
		top = append(top, slurmName(e.Name))
		slurmSwitch(out, e)
	}
	if len(top) > 1 {
		fmt.Fprintf(out, "SwitchName=%s Switches=%s\n", SlurmRoot, Hostlist(top))
	}
	slurmAlone(out, alone)
	return flush(out)
}

// slurmSwitch writes a group, what is below first. A switch has either nodes or
// switches, so nodes beside groups get a switch of their own.
func slurmSwitch(out io.Writer, e *fabric.Element) {
	var switches, nodes []string
	for _, c := range e.Child {
		if c.Kind == v1alpha1.KindNode {
			nodes = append(nodes, c.Name)
			continue
		}
		switches = append(switches, slurmName(c.Name))
		slurmSwitch(out, c)
	}
	name := slurmName(e.Name)
	if len(switches) == 0 {
		fmt.Fprintf(out, "SwitchName=%s Nodes=%s\n", name, Hostlist(nodes))
		return
	}
	if len(nodes) > 0 {
		fmt.Fprintf(out, "SwitchName=%s-rest Nodes=%s\n", name, Hostlist(nodes))
		switches = append(switches, name+"-rest")
	}
	fmt.Fprintf(out, "SwitchName=%s Switches=%s\n", name, Hostlist(switches))
}

// SlurmBlock writes topology.conf for topology/block, with the groups of one
// kind as blocks; "" means the lowest. The base block size is the smallest
// block's, since Slurm plans with whole blocks; the others are its doubles up
// to all blocks.
func SlurmBlock(w io.Writer, s *fabric.Snapshot, tiers Tiers, kind string) error {
	if kind == "" && len(tiers) > 0 {
		kind = tiers[0]
	}
	if kind != "" && tiers.of(kind) == 0 {
		return fmt.Errorf("there is no group of kind %.40q; there are %s", kind, strings.Join(tiers, ", "))
	}
	out := bufio.NewWriter(w)
	smallest, blocks := 0, 0
	var alone []string
	var walk func(list []*fabric.Element)
	walk = func(list []*fabric.Element) {
		for _, e := range list {
			switch e.Kind {
			case v1alpha1.KindNode:
				alone = append(alone, e.Name)
			case kind:
				nodes := nodesBelow(e, nil)
				fmt.Fprintf(out, "BlockName=%s Nodes=%s\n", slurmName(e.Name), Hostlist(nodes))
				blocks++
				if smallest == 0 || len(nodes) < smallest {
					smallest = len(nodes)
				}
			default:
				walk(e.Child)
			}
		}
	}
	walk(s.Child)
	if blocks > 0 {
		sizes := []string{strconv.Itoa(smallest)}
		for n := 2; n <= blocks; n *= 2 {
			sizes = append(sizes, strconv.Itoa(n*smallest))
		}
		fmt.Fprintf(out, "BlockSizes=%s\n", strings.Join(sizes, ","))
	}
	slurmAlone(out, alone)
	return flush(out)
}

func nodesBelow(e *fabric.Element, into []string) []string {
	for _, c := range e.Child {
		if c.Kind == v1alpha1.KindNode {
			into = append(into, c.Name)
		} else {
			into = nodesBelow(c, into)
		}
	}
	return into
}

func slurmAlone(out io.Writer, alone []string) {
	if len(alone) > 0 {
		slices.Sort(alone)
		fmt.Fprintf(out, "# In no group: %s\n", Hostlist(alone))
	}
}

// slurmName keeps what the hostlist parser would read as more than a name out
// of it.
func slurmName(s string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("[], =#\"'", r) || r < ' ' {
			return '_'
		}
		return r
	}, s)
}

func flush(out *bufio.Writer) error {
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write topology.conf: %w", err)
	}
	return nil
}

// host is a name and the number at its end, if it has one: padding is how many
// digits a number with leading zeros has, 0 for others.
type host struct {
	name, prefix    string
	number, padding int
	numbered        bool
}

// maxDigits keeps numbers within an int.
const maxDigits = 9

func hostOf(name string) host {
	h := host{name: name, prefix: strings.TrimRight(name, "0123456789")}
	digits := name[len(h.prefix):]
	number, err := strconv.Atoi(digits)
	if err != nil || len(digits) > maxDigits {
		h.prefix = name
		return h
	}
	h.number, h.numbered = number, true
	if digits[0] == '0' {
		h.padding = len(digits)
	}
	return h
}

// digits is the number as it stands in the name.
func (h *host) digits() string { return h.name[len(h.prefix):] }

// Hostlist writes names in Slurm's short form, node[001-003,007],tux: names
// that differ in a number at their end only are one term. The number of digits
// is kept.
func Hostlist(names []string) string {
	hosts := make([]host, len(names))
	for i, name := range names {
		hosts[i] = hostOf(name)
	}
	slices.SortFunc(hosts, func(a, b host) int {
		return cmp.Or(
			strings.Compare(a.prefix, b.prefix), -cmp.Compare(a.padding, b.padding), cmp.Compare(a.number, b.number),
			strings.Compare(a.name, b.name),
		)
	})
	var terms []string
	for len(hosts) > 0 {
		n := 1
		for n < len(hosts) && sameSeries(&hosts[0], &hosts[n]) {
			n++
		}
		if n == 1 {
			terms = append(terms, hosts[0].name)
		} else {
			terms = append(terms, hosts[0].prefix+"["+ranges(hosts[:n])+"]")
		}
		hosts = hosts[n:]
	}
	return strings.Join(terms, ",")
}

// sameSeries reports whether two names differ in their number only. Of numbers
// with leading zeros the widths are equal: n[009-010].
func sameSeries(a, b *host) bool {
	return a.numbered && b.numbered && a.prefix == b.prefix &&
		(a.padding == b.padding || len(a.digits()) == len(b.digits()))
}

// ranges writes the numbers of a sorted series.
func ranges(hosts []host) string {
	var out []string
	for len(hosts) > 0 {
		n := 1
		for n < len(hosts) && hosts[n].number == hosts[n-1].number+1 {
			n++
		}
		text := hosts[0].digits()
		if n > 1 {
			text = fmt.Sprintf("%s-%s", text, hosts[n-1].digits())
		}
		out = append(out, text)
		hosts = hosts[n:]
	}
	return strings.Join(out, ",")
}
