package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/strict"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// maxGPUWord is the longest domains.card, in characters: it is a part of label
// keys.
const maxGPUWord = 20

// validate checks what types and words cannot express.
func (c *NodeConfig) validate() []*strict.Error {
	v := validator{}
	v.domains(c.Domains)
	for _, named := range c.Each() {
		if v.resources(named); len(v.errs) > 0 {
			break // The other makers' names have the same fault.
		}
	}
	if d := &c.SGPU.Defaults; d.VMemory > 0 && d.VMemoryPercentage != DefaultShare().VMemoryPercentage {
		v.addf("sgpu.defaults.vmemory", "not with sgpu.defaults.vmemoryPercentage %d: take one of the two",
			d.VMemoryPercentage)
	}
	v.health(&c.Health)
	v.levels(&c.Topology)
	v.rules(c)
	return v.errs
}

// validator collects errors without file and line.
type validator struct{ errs []*strict.Error }

func (v *validator) add(path string, err error) {
	if err != nil {
		v.errs = append(v.errs, &strict.Error{Path: path, Err: err})
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
		v.addf("domains.card", "invalid word %q: want 1 to %d letters, digits, '-', '_' and '.'", d.GPU, maxGPUWord)
	}
}

// resources checks names, and that no two things have the same one.
func (v *validator) resources(c *NodeConfig) {
	owners := map[string]string{}
	take := func(path, name string) {
		v.add(path, wellknown.CheckResource(name))
		if owner, taken := owners[name]; taken {
			v.addf(path, "%s is the name of %s too", name, owner)
		} else if c.MIGStrategy == MIGMixed && wellknown.Match(c.Domains.MIGResources(), name) {
			v.addf(path, "%s is a name of MIG devices under migStrategy mixed", name)
		}
		owners[name] = path
	}
	take("resources.gpu", c.Resources.GPU)
	take("resources.sgpu", c.Resources.SGPU)
	take("resources.vcore", c.Resources.VCore)
	take("resources.vmemory", c.Resources.VMemory)
	if c.Resources.VMemoryPercentage != "" {
		take("resources.vmemoryPercentage", c.Resources.VMemoryPercentage)
	}
	if c.SGPU.Advertise == AdvertiseAll && !c.Resources.counted() {
		v.addf("sgpu.advertise", "the kubelet counts a device for each unit of %s, so %s takes resources.vmemoryUnit %s, "+
			"and no resources.vmemoryPercentage", c.Resources.VMemory, AdvertiseAll, GiB)
	}
	if c.SGPU.MemoryOvercommit > 1 && c.SGPU.HAMi == HAMiOn {
		v.addf("sgpu.memoryOvercommit",
			"not with sgpu.hami: HAMi takes what a GPU offers for what one container may have")
	}
	for i := range c.RDMA.Resources {
		take(fmt.Sprintf("rdma.resources[%d].name", i), c.RDMA.Resources[i].Name)
	}
}

func (v *validator) rules(c *NodeConfig) {
	if len(c.Labels) > MaxRules {
		v.addf("labels", "%d rules, more than %d", len(c.Labels), MaxRules)
	}
	owned := append(c.Domains.NodeLabels(), wellknown.TopologyLabels, wellknown.TopologyShape)
	kubelets := wellknown.KubeletLabels()
	keys := c.ruleKeys()
	for i, key := range keys {
		at := rulePath(i, "key")
		v.add(at, wellknown.CheckKey(key))
		if first := slices.Index(keys, key); first < i {
			v.addf(at, "two rules for %s; the first is %s", key, rulePath(first, ""))
		}
		if slices.ContainsFunc(owned, func(pattern string) bool { return wellknown.Match(pattern, key) }) {
			v.addf(at, "%s is a label that heddle writes itself", key)
		}
		if slices.Contains(kubelets, key) {
			v.addf(at, "%s is the kubelet's, and pods are scheduled by it", key)
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

// checkChoice finds what is wrong with the part of an override that chooses
// nodes. A label that depends on the chosen configuration cannot choose it: the
// node would change its configuration, and with it its label, for ever.
func (c *Config) checkChoice(o *Override) []*strict.Error {
	v := validator{}
	if o.NodeName == "" && len(o.NodeSelector) == 0 {
		v.addf("", "has neither nodeName nor nodeSelector")
	}
	if o.NodeName != "" {
		v.add("nodeName", o.NodeName.Check())
	}
	for _, key := range slices.Sorted(maps.Keys(o.NodeSelector)) {
		at := "nodeSelector." + key
		v.add(at, errors.Join(wellknown.CheckKey(key), wellknown.CheckValue(o.NodeSelector[key])))
		switch {
		case slices.ContainsFunc(c.Sections(), func(s *NodeConfig) bool { return s.decides(key) }):
			v.addf(at, "is a label that this configuration decides; it cannot choose the configuration")
		case !o.describes(key) && slices.ContainsFunc(c.Sections(), func(s *NodeConfig) bool { return s.describes(key) }):
			v.addf(at, "is a label that goes away under the domains of this entry; it cannot choose the entry")
		}
	}
	return v.errs
}

// decides reports whether a label's value comes from the configuration and not
// from the hardware.
func (c *NodeConfig) decides(key string) bool {
	d := c.Domains
	return slices.Contains(c.ruleKeys(), key) || wellknown.Match(d.MIGResources(), key) || slices.Contains([]string{
		d.Usage(), d.ControlPlane(), d.GPUKey(wellknown.GPUSharingStrategy), d.GPUKey(wellknown.GPUReplicas),
		d.VendorKey(wellknown.MIGStrategy), d.VendorKey(wellknown.MPSCapable),
	}, key)
}

// describes reports whether discovery writes a label under this configuration.
func (c *NodeConfig) describes(key string) bool {
	return slices.ContainsFunc(c.Domains.NodeLabels(), func(pattern string) bool { return wellknown.Match(pattern, key) })
}
