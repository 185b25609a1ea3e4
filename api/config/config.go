// Package config reads what operators want of their nodes: one ConfigMap of
// three keys, mounted as a directory.
//
// It owns the keys, their defaults, what is right and wrong about them, and
// which of them hold for which node. It is strict: what it does not know is an
// error with file, place and line, since a typing error that is ignored is a
// node that does something else than its owner thinks. It never talks to the
// API server and never looks at hardware.
//
// The layers of a node's configuration are the defaults, the cluster's section
// and the first override that matches the node. Sections merge key by key;
// lists replace each other.
package config

import (
	"errors"
	"reflect"
	"slices"

	"github.com/heddle-dev/heddle/api/strict"
)

// Config is the configuration of a cluster. It is immutable once loaded.
type Config struct {
	// Cluster holds for nodes that no override matches.
	Cluster NodeConfig
	// Overrides are tried in order.
	Overrides []Override
}

// Override is the configuration of some nodes. It needs a nodeName or a
// nodeSelector; with both, both must match.
type Override struct {
	// NodeName is the Node's name, or a glob: `h800-*`.
	NodeName Glob `yaml:"nodeName"`
	// NodeSelector are labels that the Node must have, with these values. It must not use labels that this
	// configuration sets: node.usage, control-plane, those of rules, and those about sharing and MIG.
	NodeSelector map[string]string `yaml:"nodeSelector"`
	// NodeConfig is merged over the cluster's.
	NodeConfig `yaml:",inline"`
}

// New returns a configuration of one section for all nodes. The section must be
// complete: see [NodeConfig.Complete].
func New(all NodeConfig) *Config { return &Config{Cluster: all} }

// Resolve gives the configuration of one node: the first override that
// matches its name and labels, else the cluster's. The lists in it are shared;
// do not change them.
func (c *Config) Resolve(node string, labels map[string]string) NodeConfig {
	for i := range c.Overrides {
		if c.Overrides[i].matches(node, labels) {
			return c.Overrides[i].NodeConfig
		}
	}
	return c.Cluster
}

// NeedsLabels reports whether the configuration of a node depends on its labels:
// whether an entry that could be its own has a nodeSelector.
func (c *Config) NeedsLabels(node string) bool {
	for i := range c.Overrides {
		o := &c.Overrides[i]
		switch {
		case o.matches(node, nil):
			return false
		case len(o.NodeSelector) > 0 && (o.NodeName == "" || o.NodeName.Match(node)):
			return true
		}
	}
	return false
}

// Sections lists every configuration that a node can have: those that Resolve gives,
// with the names of each maker where the node's GPUs decide that.
func (c *Config) Sections() []*NodeConfig {
	sections := c.Cluster.Each()
	for i := range c.Overrides {
		sections = append(sections, c.Overrides[i].Each()...)
	}
	return sections
}

func (o *Override) matches(node string, labels map[string]string) bool {
	if o.NodeName != "" && !o.NodeName.Match(node) {
		return false
	}
	for key, want := range o.NodeSelector {
		if got, ok := labels[key]; !ok || got != want {
			return false
		}
	}
	return true
}

// Complete builds the names that were left to be derived and checks the values. [Load] does
// it; it is for configurations made in code, and compiles no label rules. The error has a [strict.Error] for
// everything that is wrong.
func (c *NodeConfig) Complete() error {
	var errs []error
	for _, e := range c.complete(Uncompiled{}) {
		e.File = "configuration"
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// complete is Complete with a compiler for label rules.
func (c *NodeConfig) complete(compiler RuleCompiler) []*strict.Error {
	c.deriveNames()
	v := validator{}
	v.values(reflect.ValueOf(c).Elem(), "", "")
	errs := slices.Concat(v.errs, c.validate())
	c.Rules = nil
	for i, r := range c.Labels[:min(len(c.Labels), MaxRules+1)] {
		compiled, wrong := compiler.Compile(r.Key, r.Value, r.When)
		for _, e := range wrong {
			errs = append(errs, &strict.Error{Path: rulePath(i, e.Path), Err: e.Err})
		}
		if compiled != nil {
			c.Rules = append(c.Rules, compiled)
		}
	}
	return errs
}
