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
	switches, alone := slurmSwitches(s)
	for i := range switches {
		fmt.Fprintf(out, "SwitchName=%s %s\n", switches[i].name, switches[i].members("Nodes=", "Switches="))
	}
	slurmAlone(out, alone)
	return flush(out)
}

// slurmSwitch has either nodes or other switches, as Slurm wants it.
type slurmSwitch struct {
	name            string
	nodes, switches []string
}

func (s *slurmSwitch) members(nodes, switches string) string {
	if len(s.switches) > 0 {
		return switches + Hostlist(s.switches)
	}
	return nodes + Hostlist(s.nodes)
}

// slurmSwitches returns the groups, lower groups first, and the nodes without a group.
func slurmSwitches(s *fabric.Snapshot) (out []slurmSwitch, alone []string) {
	var top []string
	for _, e := range s.Child {
		if e.Kind == v1alpha1.KindNode {
			alone = append(alone, e.Name)
			continue
		}
		top = append(top, slurmName(e.Name))
		out = appendSwitches(out, e)
	}
	if len(top) > 1 {
		out = append(out, slurmSwitch{name: SlurmRoot, switches: top})
	}
	return out, alone
}

// appendSwitches appends a group after the groups below it. Nodes beside groups get a separate
// switch.
func appendSwitches(out []slurmSwitch, e *fabric.Element) []slurmSwitch {
	s := slurmSwitch{name: slurmName(e.Name)}
	for _, c := range e.Child {
		if c.Kind == v1alpha1.KindNode {
			s.nodes = append(s.nodes, c.Name)
			continue
		}
		s.switches = append(s.switches, slurmName(c.Name))
		out = appendSwitches(out, c)
	}
	if len(s.nodes) > 0 && len(s.switches) > 0 {
		out = append(out, slurmSwitch{name: s.name + "-rest", nodes: s.nodes})
		s.switches = append(s.switches, s.name+"-rest")
	}
	return append(out, s)
}

// SlurmBlock writes topology.conf for topology/block, with the groups of one kind as blocks. ""
// means the lowest kind, which is the NVLink domain if any exists. Nodes in no block are left out,
// with a comment that names them.
func SlurmBlock(w io.Writer, s *fabric.Snapshot, tiers Tiers, kind string) error {
	blocks, alone, err := slurmBlocks(s, tiers, kind)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	for _, b := range blocks {
		fmt.Fprintf(out, "BlockName=%s Nodes=%s\n", b.name, Hostlist(b.nodes))
	}
	if len(blocks) > 0 {
		fmt.Fprintf(out, "BlockSizes=%s\n", strings.Join(blockSizes(blocks), ","))
	}
	slurmAlone(out, alone)
	return flush(out)
}

// slurmBlock is a block of topology/block.
type slurmBlock struct {
	name  string
	nodes []string
}

// slurmBlocks returns the groups of a kind, in the tree's order and then those that
// cross it, and the nodes in none.
func slurmBlocks(s *fabric.Snapshot, tiers Tiers, kind string) (out []slurmBlock, alone []string, err error) {
	if kind == "" && len(tiers) > 0 {
		kind = tiers[0]
	}
	if kind != "" && tiers.of(kind) == 0 {
		return nil, nil, fmt.Errorf("unknown kind of group %.40q: want one of %s", kind, strings.Join(tiers, ", "))
	}
	in := map[string]bool{}
	if kind != "" {
		for _, e := range s.Select(kind, "") {
			b := slurmBlock{name: slurmName(e.Name)}
			for _, n := range fabric.All(e.Child) {
				if n.Kind == v1alpha1.KindNode {
					b.nodes, in[n.Name] = append(b.nodes, n.Name), true
				}
			}
			out = append(out, b)
		}
	}
	for _, e := range s.All() {
		if e.Kind == v1alpha1.KindNode && !in[e.Name] {
			alone = append(alone, e.Name)
		}
	}
	return out, alone, nil
}

// blockSizes returns the smallest block's, since Slurm plans with whole blocks, and its
// doubles up to all blocks.
func blockSizes(blocks []slurmBlock) []string {
	smallest := len(blocks[0].nodes)
	for _, b := range blocks[1:] {
		smallest = min(smallest, len(b.nodes))
	}
	sizes := []string{strconv.Itoa(smallest)}
	for n := 2; n <= len(blocks); n *= 2 {
		sizes = append(sizes, strconv.Itoa(n*smallest))
	}
	return sizes
}

// SlurmYAML writes topology.yaml, which Slurm reads since 25.05 in place of
// topology.conf: the fabric as the tree of all partitions, and the NVLink domains as
// blocks for the partitions that name them. A fleet without NVLink domains has
// blocks of the lowest groups.
func SlurmYAML(w io.Writer, s *fabric.Snapshot, tiers Tiers) error {
	out := bufio.NewWriter(w)
	switches, alone := slurmSwitches(s.Along(fabric.AxisFabric))
	fmt.Fprint(out, "---\n- topology: heddle-tree\n  cluster_default: true\n")
	if len(switches) == 0 {
		fmt.Fprint(out, "  flat: true\n")
	} else {
		fmt.Fprint(out, "  tree:\n    switches:\n")
	}
	for i := range switches {
		fmt.Fprintf(out, "      - switch: %q\n        %s\n", switches[i].name, switches[i].members("nodes: ", "children: "))
	}
	slurmAlone(out, alone)
	blocks, alone, err := slurmBlocks(s, tiers, "")
	if err != nil {
		return err
	}
	if len(blocks) > 0 {
		fmt.Fprint(out, "- topology: heddle-block\n  cluster_default: false\n  block:\n    block_sizes:\n")
		for _, size := range blockSizes(blocks) {
			fmt.Fprintf(out, "      - %s\n", size)
		}
		fmt.Fprint(out, "    blocks:\n")
		for _, b := range blocks {
			fmt.Fprintf(out, "      - block: %q\n        nodes: %s\n", b.name, Hostlist(b.nodes))
		}
		slurmAlone(out, alone)
	}
	return flush(out)
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

// digits returns the number as it stands in the name.
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
