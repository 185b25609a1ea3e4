// Package source reads what a command is about: the machine, this host's or a
// dump's, and the configuration of its node. It decides nothing.
package source

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/host"
)

// Host is the value of --machine that means this host.
const Host = "host"

// Flags name where to read from.
type Flags struct {
	machine, node, config string
	// labels are nil while they are not known.
	labels  map[string]string
	options host.Options
	// used replaces a configuration that is not given.
	used *config.Config
}

// Register adds the flags.
func (f *Flags) Register(set *pflag.FlagSet) {
	set.StringVar(&f.machine, "machine", Host, "`host`, or a file that heddle inspect -o json wrote")
	f.RegisterConfig(set)
	set.StringVar(&f.node, "node-name", os.Getenv("NODE_NAME"),
		"`name` of the machine's Node; default $NODE_NAME, then the dump's or the host's name")
	set.StringToStringVar(&f.labels, "node-labels", nil,
		"labels that the Node has, `key=value,...`, for entries of nodes-config with a nodeSelector")
	set.Lookup("node-labels").DefValue = "" // Not "[]" in the help.
	set.StringVar(&f.options.SysfsRoot, "sysfs-root", "/sys", "`dir` where the host's sysfs is")
	set.StringVar(&f.options.DevRoot, "dev-root", "/dev", "`dir` where the host's device nodes are")
	set.StringVar(&f.options.ProcRoot, "proc-root", "/proc", "`dir` where the host's procfs is")
	set.StringVar(&f.options.DriverRoot, "driver-root", "",
		"`dir` where the GPU driver is installed, such as /run/nvidia/driver; empty: the dynamic loader finds its library")
}

// RegisterConfig adds the flag of the configuration alone.
func (f *Flags) RegisterConfig(set *pflag.FlagSet) {
	set.StringVar(&f.config, "config", "", "`dir` with the ConfigMap's keys as files; empty: built-in defaults")
}

// Subject is the machine and configuration that a command works on.
type Subject struct {
	// Machine is as it was read.
	Machine *machine.Machine
	// Config is the configuration of the machine's node.
	Config config.NodeConfig
	// Unsure explains why Config may belong to another node; empty if it is certain.
	Unsure string
}

// Of sets the Node that the machine is, as the API server knows it.
func (f *Flags) Of(node string, labels map[string]string) {
	f.node, f.labels = node, labels
	if f.labels == nil {
		f.labels = map[string]string{}
	}
}

// Load reads the machine and the configuration. A fault in a file names the
// file and the place.
func (f *Flags) Load(ctx context.Context) (*Subject, error) {
	m, err := f.read(ctx)
	if err != nil {
		return nil, err
	}
	c, err := f.Config()
	if err != nil {
		return nil, err
	}
	s := &Subject{Machine: m, Config: c.Resolve(m.Node, f.labels).For(m)}
	if f.labels == nil && c.NeedsLabels(m.Node) {
		s.Unsure = "nodes-config has entries with a nodeSelector, and the labels of Node " + m.Node +
			" are not known: give --node-labels"
	}
	return s, nil
}

// Use takes the keys of a cluster's ConfigMap where no configuration is given.
func (f *Flags) Use(files map[string][]byte) (err error) {
	f.used, err = config.Parse(files, &rule.CEL{})
	return err
}

// Config reads the configuration of the cluster.
func (f *Flags) Config() (*config.Config, error) {
	switch {
	case f.config == "" && f.used != nil:
		return f.used, nil
	case f.config == "":
		return config.Builtin(), nil
	}
	c, err := config.Load(f.config, &rule.CEL{})
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", f.config, err)
	}
	return c, nil
}

func (f *Flags) read(ctx context.Context) (*machine.Machine, error) {
	if f.machine != Host {
		m, err := host.LoadDump(f.machine)
		if err != nil {
			return nil, err
		}
		if f.node != "" {
			m.Node = f.node
		}
		return m, nil
	}
	if f.options.NodeName = f.node; f.node == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("--node-name is not set, and the host has no name: %w", err)
		}
		f.options.NodeName = name
	}
	h := host.New(f.options)
	m := h.Scan(ctx)
	if err := h.Close(ctx); err != nil {
		return nil, fmt.Errorf("close NVML: %w", err)
	}
	return m, nil
}
