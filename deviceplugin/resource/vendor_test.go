package resource_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/discovery/capacity"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// acme is a vendor that does not exist.
func acme() *devgpu.Vendor {
	return &devgpu.Vendor{
		Name: "ACME", Domain: "acme.example", Probe: "acmectl", Link: "ACMELink", Module: "acme", Node: "/dev/acme",
		PCI:         devgpu.PCI{Vendor: "0xacee", GPUs: []string{"0x12"}},
		Codes:       devgpu.Catalog{Kind: "AERR", Rows: []devgpu.Row{{First: 7, Last: 7, Severity: devgpu.Fatal, Text: "the core melted"}}},
		Environment: devgpu.Environment{Visible: "ACME_VISIBLE_DEVICES", None: "none"},
	}
}

// acmeLibrary reads one GPU, and makes its CDI device.
type acmeLibrary struct{}

func (acmeLibrary) Open() (machine.Driver, int, error) { return machine.Driver{Version: "3.1"}, 1, nil }

func (acmeLibrary) GPU(i int) (machine.GPU, error) {
	return machine.GPU{
		UUID: "ACME-1", Index: i, PCI: "0000:01:00.0", Product: "ACME Anvil", MemoryMiB: 65536,
		Health: machine.Health{State: machine.Healthy},
	}, nil
}

func (acmeLibrary) Close() error { return nil }

func (acmeLibrary) Generate(m *machine.Machine) (*devgpu.Edits, error) {
	out := &devgpu.Edits{}
	for i := range m.GPUs {
		out.Devices = append(out.Devices, specs.Device{Name: m.GPUs[i].UUID, ContainerEdits: specs.ContainerEdits{
			DeviceNodes: []*specs.DeviceNode{{Path: fmt.Sprintf("/dev/acme%d", i)}},
		}})
	}
	return out, nil
}

func (acmeLibrary) Fingerprint() string { return "" }

// A vendor's machine goes through scan, labels, resources, health, Allocate and
// the CDI spec, and no word of another vendor is in what comes out.
func TestAnotherVendor(t *testing.T) {
	tree := sysfstest.New(t)
	tree.PCI(sysfstest.Function{Path: "pci0000:00/0000:00:01.0/0000:01:00.0", Class: "0x120000", Vendor: "0xacee", Device: "0x0001", Driver: "acme"})
	sources := devgpu.Sources{{Vendor: acme(), Library: acmeLibrary{}}}
	m := host.New(host.Options{
		SysfsRoot: tree.Sys(), DevRoot: tree.Dev(), ProcRoot: tree.Proc(), GPUs: sources,
	}).Scan(t.Context())
	if len(m.GPUs) != 1 || m.GPUs[0].UUID != "ACME-1" {
		t.Fatalf("scanned %+v", m)
	}
	c := parse(t, "domains: {vendor: acme.example}")
	var out strings.Builder
	show := func(v any) { fmt.Fprintf(&out, "%+v\n", v) }
	// The names of fields stay: they are keys of the dump.
	fmt.Fprintln(&out, m.PCI, m.GPUs, m.Driver, m.Probes, m.Skipped)
	computed := labels.Compute(m, &c, sources.Vendors())
	show(computed.Labels)
	if computed.Labels["acme.example/gpu.product"] != "ACME-Anvil" {
		t.Errorf("labels %v", computed.Labels)
	}
	show(capacity.Of(m, &c, sources.Vendors()))
	lost := *m
	lost.GPUs = nil
	reason := capacity.Of(&lost, &c, sources.Vendors())[0].Reason
	show(reason)
	if !strings.Contains(reason, "1 ACME GPU on the PCI bus") {
		t.Errorf("without a driver: %s", reason)
	}

	monitor := health.New(health.Options{Source: scanned{m}, Config: &c, PollInterval: health.DefaultPollInterval, Log: slog.New(slog.DiscardHandler)})
	codes := acme().Codes
	monitor.OnEvent(devgpu.Event{GPU: "ACME-1", Code: codes.Code(7)})
	state := monitor.Snapshot().GPU("ACME-1")
	show(state)
	if state.Healthy || state.Cause != "AERR" || !strings.Contains(state.Reason, "AERR 7, the core melted") {
		t.Errorf("health %+v", state)
	}

	dir := t.TempDir()
	driver := cdi.NewDriverSpec(dir, sources, sources.Vendors(), nil)
	if err := driver.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	spec, err := os.ReadFile(filepath.Join(dir, cdi.DriverFile))
	if err != nil || !strings.Contains(string(spec), "ACME_VISIBLE_DEVICES=none") {
		t.Errorf("spec %s, %v", spec, err)
	}
	show(string(spec))
	n := newGPUNode(t, m)
	n.config = c
	for _, strategy := range []resource.Strategy{resource.CDI, resource.Envvar} {
		o := n.options(t, "acme.example/gpu")
		o.Vendors, o.Driver, o.Strategy = sources.Vendors(), driver, strategy
		answer, err := resource.NewGPUs(o, n.inventory()).Allocate(t.Context(), []string{"ACME-1"})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		show(string(text))
		want := map[resource.Strategy]string{resource.CDI: "none", resource.Envvar: "ACME-1"}[strategy]
		if got := answer.Envs["ACME_VISIBLE_DEVICES"]; got != want {
			t.Errorf("strategy %s: %q, want %q", strategy, got, want)
		}
	}
	if word := regexp.MustCompile(`(?i)nvidia|nvml|cuda|\bxid|10de|mig\.|mps\.`).FindString(out.String()); word != "" {
		t.Errorf("%q in:\n%s", word, &out)
	}
}

// scanned is a machine that never changes.
type scanned struct{ m *machine.Machine }

func (s scanned) Machine() *machine.Machine { return s.m }

func (scanned) Changed() <-chan struct{} { return nil }
