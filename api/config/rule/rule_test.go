package rule_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/names"
)

func h800() *machine.Machine {
	m := &machine.Machine{
		Version: machine.Version,
		Node:    "h800-1",
		CPU:     machine.CPU{Codename: "amd-epyc-milan", Vendor: "amd", Sockets: 2},
		HCAs: []machine.HCA{{
			Name: "mlx5_100", PCI: "0000:18:00.0", Role: machine.RoleFabric, Type: "MT4129",
			Ports: []machine.Port{{Number: 1, LinkLayer: machine.InfiniBand, State: machine.PortActive, RateGbps: new(400.0)}},
		}},
	}
	for i := range 8 {
		m.GPUs = append(m.GPUs, machine.GPU{
			UUID: "GPU-" + string(rune('a'+i)), Index: i, Product: "NVIDIA H800", MemoryMiB: 81559, Architecture: "hopper",
			ComputeCapability: "9.0", Health: machine.Health{State: machine.Healthy},
			NVLinks: []machine.NVLink{{Peer: machine.PeerNVSwitch, Links: 8}},
		})
	}
	return m
}

func TestEval(t *testing.T) {
	for _, tt := range []struct {
		name        string
		value, when string
		want        string
		ok          bool
		problem     string
	}{
		{name: "documented gpu", value: "gpu.model + '_' + gpu.interconnect + '_' + gpu.memory", when: "gpu.count > 0", want: "H800_NVLINK_80GB", ok: true},
		{name: "documented cpu", value: "cpu.codename", want: "amd-epyc-milan", ok: true},
		{name: "documented ring", value: "'ff'", when: "node in ['h800-1', 'h800-2']", want: "ff", ok: true},
		{name: "not here", value: "'ff'", when: "node in ['h800-3']"},
		{name: "empty is none", value: "machine.product"},
		{name: "number as text", value: "string(rdma.rateGbps)", want: "400", ok: true},
		{name: "type of fabric", value: "rdma.type + '.' + rdma.linkLayer + '.' + string(rdma.count)", want: "MT4129.InfiniBand.1", ok: true},
		{name: "over a list", value: "machine.gpus.all(g, g.health.state == 'healthy') ? 'yes' : 'no'", want: "yes", ok: true},
		{name: "role is text", value: "machine.hcas[0].role", want: "fabric", ok: true},
		{name: "unknown is told by has", value: "has(machine.gpus[0].minor) ? 'known' : 'unknown'", want: "unknown", ok: true},
		{name: "unknown structures are empty", value: "'x' + machine.gpus[0].fabric.state", want: "x", ok: true},
		{name: "pointer to a number", value: "string(int(machine.hcas[0].ports[0].rateGbps))", want: "400", ok: true},
		{name: "models", value: "gpu.models.join('_')", want: "H800", ok: true},
		{name: "text functions", value: "gpu.product.lowerAscii().replace(' ', '-')", want: "nvidia-h800", ok: true},
		{name: "out of range", value: "machine.gpus[9].uuid", problem: "index out of bounds"},
		{name: "no label value", value: "gpu.product", problem: "no label value"},
		{name: "too long", value: "gpu.product.replace(' ', '-') + '" + strings.Repeat("x", 60) + "'", problem: "no label value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c rule.Compiler
			r, faults := c.Compile("k", tt.value, tt.when)
			if faults != nil {
				t.Fatal(faults)
			}
			got, ok, err := r.Eval(rule.FactsOf(h800()))
			if got != tt.want || ok != tt.ok || (err != nil) != (tt.problem != "") {
				t.Fatalf("got %q, %t, %v", got, ok, err)
			}
			if err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("error %q lacks %q", err, tt.problem)
			}
		})
	}
}

func TestCompileErrors(t *testing.T) {
	for _, tt := range []struct {
		name        string
		value, when string
		want        string
	}{
		{"empty", " ", "", "value: empty expression"},
		{"syntax", "gpu.", "", "value: column 5: Syntax error"},
		{"unknown field", "gpu.modle", "", "value: column 4: undefined field 'modle'"},
		{"unknown field of the machine", "machine.gpus[0].name", "", "undefined field 'name'"},
		{"unknown variable", "nodename", "", "undeclared reference to 'nodename'"},
		{"count is no text", "gpu.count", "", "value: is int, not a text: wrap it in string()"},
		{"when is text", "'a'", "node", "when: is string, not true or false"},
		{"both wrong", "1", "2", "value: is int, not a text: wrap it in string()\nwhen: is int"},
		{"dynamic", "dyn(gpu.model)", "", "value: is dyn, not a text"},
		{"literal that is no value", "'not a value'", "", "no label value"},
		{"too long", "'" + strings.Repeat("a", rule.MaxLength) + "'", "", "more than 2048"},
		{"too costly", "'a'", "machine.pci.all(a, machine.pci.all(b, machine.pci.all(c, machine.pci.all(d, a.address != b.address))))", "too costly"},
		{"too deep", strings.Repeat("(", 200) + "'a'" + strings.Repeat(")", 200), "", "recursion"},
		{"bad regex", "'a'", "node.matches('(')", "invalid matches argument"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c rule.Compiler
			_, faults := c.Compile("k", tt.value, tt.when)
			var got strings.Builder
			for _, fault := range faults {
				got.WriteString(fault.Error() + "\n")
			}
			if !strings.Contains(got.String(), tt.want) {
				t.Errorf("%q lacks %q", got.String(), tt.want)
			}
		})
	}
}

// What the estimate cannot see is stopped while it runs.
func TestCostLimitWhileRunning(t *testing.T) {
	var c rule.Compiler
	r, faults := c.Compile("k", "machine.hcas.all(a, machine.hcas.all(b, a.name != 'x')) ? 'a' : 'b'", "")
	if faults != nil {
		t.Fatal(faults)
	}
	m := h800()
	m.HCAs = make([]machine.HCA, 2000)
	if _, _, err := r.Eval(rule.FactsOf(m)); !errors.Is(err, rule.ErrCost) {
		t.Errorf("got %v", err)
	}
}

func FuzzCompile(f *testing.F) {
	f.Add("gpu.model + '_' + gpu.memory", "gpu.count > 0")
	f.Add("machine.gpus.map(g, g.uuid).join('.')", "node.matches('^a+$')")
	f.Add("'%s'.format([machine])", "")
	facts := rule.FactsOf(h800())
	f.Fuzz(func(t *testing.T, value, when string) {
		var c rule.Compiler
		r, faults := c.Compile("k", value, when)
		if faults != nil {
			return
		}
		got, ok, err := r.Eval(facts)
		if err == nil && ok && names.CheckValue(got) != nil {
			t.Errorf("%q gives %q", value, got)
		}
	})
}
