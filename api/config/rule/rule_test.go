package rule_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
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
		{name: "has reports unknown", value: "has(machine.gpus[0].minor) ? 'known' : 'unknown'", want: "unknown", ok: true},
		{name: "unknown structures are empty", value: "'x' + machine.gpus[0].fabric.state", want: "x", ok: true},
		{name: "pointer to a number", value: "string(int(machine.hcas[0].ports[0].rateGbps))", want: "400", ok: true},
		{name: "models", value: "gpu.models.join('_')", want: "H800", ok: true},
		{name: "text functions", value: "gpu.product.lowerAscii().replace(' ', '-')", want: "nvidia-h800", ok: true},
		{name: "out of range", value: "machine.gpus[9].uuid", problem: "index out of bounds"},
		{name: "a pattern that other engines need years for", value: "('a' + gpu.product).matches('^(([a-z])+.)+[A-Z]([a-z])+$') ? 'a' : 'b'", want: "b", ok: true},
		{name: "a pattern that does not compile here", value: "node.matches(gpu.product + '(') ? 'a' : 'b'", problem: "error parsing regexp"},
		{name: "a division by zero", value: "string(1 / (gpu.count - 8))", problem: "division by zero"},
		{name: "an overflow", value: "string(machine.gpus[0].memoryMiB * 9223372036854775807)", problem: "integer overflow"},
		{name: "no label value", value: "gpu.product", problem: "invalid label value"},
		{name: "too long", value: "gpu.product.replace(' ', '-') + '" + strings.Repeat("x", 60) + "'", problem: "invalid label value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c rule.CEL
			r, faults := c.Compile("k", tt.value, tt.when)
			if faults != nil {
				t.Fatal(faults)
			}
			got, ok, err := r.Eval(model.FactsOf(h800()))
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
		{"literal that is no value", "'not a value'", "", "invalid label value"},
		{"too long", "'" + strings.Repeat("a", rule.MaxLength) + "'", "", "more than 2048"},
		{"too costly", "'a'", "machine.pci.all(a, machine.pci.all(b, machine.pci.all(c, machine.pci.all(d, a.address != b.address))))", "too costly"},
		{"a bomb of replacements", "'a'" + strings.Repeat(".replace('a', 'aaaaaaaaaa')", 40), "", "too costly"},
		{"format, which costs nothing and multiplies", "'%s'.format([node])", "", "value: format is not available here: join texts with +"},
		{"quote, which doubles", "strings.quote(node)", "", "value: strings.quote is not available here"},
		{"every text against every text", "'a'", "machine.pci.exists(p, machine.pci.exists(q, p.address.matches(q.address)))", "too costly"},
		{"too deep", strings.Repeat("(", 200) + "'a'" + strings.Repeat(")", 200), "", "recursion"},
		{"bad regex", "'a'", "node.matches('(')", "invalid matches argument"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c rule.CEL
			_, faults := c.Compile("k", tt.value, tt.when)
			var got strings.Builder
			for _, fault := range faults {
				got.WriteString(fault.Path + ": " + fault.Err.Error() + "\n")
			}
			if !strings.Contains(got.String(), tt.want) {
				t.Errorf("%q lacks %q", got.String(), tt.want)
			}
		})
	}
}

// What the estimate cannot see is stopped while it runs.
func TestCostLimitWhileRunning(t *testing.T) {
	var c rule.CEL
	r, faults := c.Compile("k", "machine.hcas.all(a, machine.hcas.all(b, a.name != 'x')) ? 'a' : 'b'", "")
	if faults != nil {
		t.Fatal(faults)
	}
	m := h800()
	m.HCAs = make([]machine.HCA, 2000)
	if _, _, err := r.Eval(model.FactsOf(m)); !errors.Is(err, rule.ErrCost) {
		t.Errorf("got %v", err)
	}
}

// Whatever makes texts of texts is stopped before they are large.
func TestTextsDoNotGrow(t *testing.T) {
	facts := model.FactsOf(h800())
	for name, step := range map[string]string{
		"plus": "[IN].map(x, x+x+x+x)[0]", "join": "[IN].map(x, [x,x,x,x,x,x,x,x,x,x].join(x))[0]",
		"replace": "[IN].map(x, x.replace('a', x))[0]", "replace nothing": "IN.replace('', 'aaaaaaaaaa')",
		"split": "[IN].map(x, x.split('').map(y, x).join(x))[0]", "reverse": "(IN + IN).reverse()",
		"bytes": "string(bytes(IN + IN + IN))", "ternary": "(true ? IN + IN : IN)",
	} {
		t.Run(name, func(t *testing.T) {
			text := "'aaaaaaaaaa'"
			for {
				next := strings.ReplaceAll(step, "IN", text)
				if len(next) > rule.MaxLength || strings.Count(next, "x, ")+strings.Count(next, ").") > 12 {
					break
				}
				text = next
			}
			var c rule.CEL
			r, faults := c.Compile("k", text, "")
			if faults != nil {
				if !errors.Is(faults[0], rule.ErrCost) {
					t.Fatal(faults)
				}
				return
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := r.Eval(facts)
			runtime.ReadMemStats(&after)
			if allocated := after.TotalAlloc - before.TotalAlloc; err == nil || allocated > 32<<20 {
				t.Errorf("error %v, %d bytes for %q", err, allocated, text)
			}
		})
	}
}

func FuzzCompile(f *testing.F) {
	f.Add("gpu.model + '_' + gpu.memory", "gpu.count > 0")
	f.Add("machine.gpus.map(g, g.uuid).join('.')", "node.matches('^a+$')")
	f.Add("[gpu.product].map(x, x + x)[0].split('').join('a')", "")
	facts := model.FactsOf(h800())
	f.Fuzz(func(t *testing.T, value, when string) {
		var c rule.CEL
		r, faults := c.Compile("k", value, when)
		if faults != nil {
			return
		}
		got, ok, err := r.Eval(facts)
		if err == nil && ok && wellknown.CheckValue(got) != nil {
			t.Errorf("%q gives %q", value, got)
		}
	})
}
