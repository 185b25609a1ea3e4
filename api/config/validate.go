package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// problem is what is wrong at one path of a NodeConfig.
type problem struct {
	path string
	err  error
}

func (p problem) String() string { return p.path + ": " + p.err.Error() }

// maxGPUWord is the longest domains.card, in characters: it is a part of label
// keys.
const maxGPUWord = 20

// validate checks what types and words cannot express.
func (c *NodeConfig) validate() []problem {
	v := validator{}
	v.domains(c.Domains)
	v.resources(c)
	v.duplicates("sgpu.gpus", c.SGPU.GPUs)
	v.health(c.Health.Codes)
	v.topology(&c.Topology)
	v.rules(c)
	return v.problems
}

type validator struct{ problems []problem }

func (v *validator) add(path string, err error) {
	if err != nil {
		v.problems = append(v.problems, problem{path, err})
	}
}

func (v *validator) addf(path, format string, args ...any) { v.add(path, fmt.Errorf(format, args...)) }

func (v *validator) domains(d wellknown.Domains) {
	for _, domain := range []struct{ path, value string }{
		{"domains.vendor", d.Vendor}, {"domains.company", d.Company},
	} {
		v.add(domain.path, wellknown.CheckDomain(domain.value))
		if domain.value == "kubernetes.io" || strings.HasSuffix(domain.value, ".kubernetes.io") {
			v.addf(domain.path, "%q is a domain of Kubernetes' own", domain.value)
		}
	}
	if err := wellknown.CheckKey(d.GPU); err != nil || len(d.GPU) > maxGPUWord || strings.Contains(d.GPU, "/") {
		v.addf("domains.card", "%q is no word of 1 to %d letters, digits, '-', '_' and '.'", d.GPU, maxGPUWord)
	}
}

// resources checks names, and that no two things have the same one.
func (v *validator) resources(c *NodeConfig) {
	owners := map[string]string{}
	take := func(path, name string) {
		v.add(path, wellknown.CheckResource(name))
		if owner, taken := owners[name]; taken {
			v.addf(path, "%s is the name of %s too", name, owner)
		} else if c.MIG.Strategy == MIGMixed && wellknown.Match(c.Domains.MIGResources(), name) {
			v.addf(path, "%s is a name of MIG devices under mig.strategy mixed", name)
		}
		owners[name] = path
	}
	take("resources.gpu", c.Resources.GPU)
	take("resources.sgpu", c.Resources.SGPU)
	take("resources.vcore", c.Resources.VCore)
	take("resources.vmemory", c.Resources.VMemory)
	for i := range c.RDMA.Resources {
		take(fmt.Sprintf("rdma.resources[%d].name", i), c.RDMA.Resources[i].Name)
	}
}

func (v *validator) duplicates(path string, gpus []GPURef) {
	for i, gpu := range gpus {
		if first := slices.Index(gpus, gpu); first < i {
			v.addf(fmt.Sprintf("%s[%d]", path, i), "%s is also entry %d", gpu, first)
		}
	}
}

func (v *validator) rules(c *NodeConfig) {
	if len(c.Labels) > MaxRules {
		v.addf("labels", "%d rules, more than %d", len(c.Labels), MaxRules)
	}
	owned := append(c.Domains.NodeLabels(), wellknown.TopologyLabels)
	kubelets := wellknown.KubeletLabels()
	keys := c.ruleKeys()
	for i, key := range keys {
		at := rulePath(i, "key")
		v.add(at, wellknown.CheckKey(key))
		if first := slices.Index(keys, key); first < i {
			v.addf(at, "two rules for %s; the first is %s", key, rulePath(first, ""))
		}
		if slices.ContainsFunc(owned, func(pattern string) bool { return wellknown.Match(pattern, key) }) {
			v.add(at, errors.New(key+" is a label that heddle writes itself"))
		}
		if slices.Contains(kubelets, key) {
			v.add(at, errors.New(key+" is the kubelet's, and pods are scheduled by it"))
		}
	}
}

func (c *NodeConfig) ruleKeys() []string {
	keys := make([]string, len(c.Labels))
	for i := range c.Labels {
		keys[i] = c.Labels[i].Key
	}
	return keys
}

func rulePath(i int, field string) string {
	return strings.TrimSuffix(fmt.Sprintf("labels[%d].%s", i, field), ".")
}
