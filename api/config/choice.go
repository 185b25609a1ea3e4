package config

import (
	"errors"
	"maps"
	"slices"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// checkChoice finds what is wrong with the part of an override that chooses
// nodes. A label that depends on the chosen configuration cannot choose it: the
// node would change its configuration, and with it its label, for ever.
func (c *Config) checkChoice(o *Override) (problems []problem) {
	if o.NodeName == "" && len(o.NodeSelector) == 0 {
		problems = append(problems, problem{"", errors.New("has neither nodeName nor nodeSelector")})
	}
	for _, key := range slices.Sorted(maps.Keys(o.NodeSelector)) {
		at := "nodeSelector." + key
		if err := errors.Join(wellknown.CheckKey(key), wellknown.CheckValue(o.NodeSelector[key])); err != nil {
			problems = append(problems, problem{at, err})
		}
		switch {
		case slices.ContainsFunc(c.Sections(), func(s *NodeConfig) bool { return s.decides(key) }):
			problems = append(problems, problem{at, errors.New(
				"is a label that this configuration decides; it cannot choose the configuration")})
		case !o.describes(key) && slices.ContainsFunc(c.Sections(), func(s *NodeConfig) bool { return s.describes(key) }):
			problems = append(problems, problem{at, errors.New(
				"is a label that goes away under the domains of this entry; it cannot choose the entry")})
		}
	}
	return problems
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
