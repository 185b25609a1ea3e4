package chart

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// The policy allows exactly the keys that the code writes.
func TestPolicyKeys(t *testing.T) {
	moved := wellknown.Domains{Vendor: "metax-tech.com", GPU: "gpu", Company: "maip.example.com"}
	one := wellknown.Domains{Vendor: "metax-tech.com", GPU: "npu", Company: "maip.example.com"}
	for _, tt := range []struct {
		name    string
		args    []string
		domains []wellknown.Domains
		more    []string
		effects []string
	}{
		{name: "default", domains: []wellknown.Domains{wellknown.AutoDomains()}, effects: []string{"NoSchedule"}},
		{
			name: "domains, rules and effects of cluster and nodes",
			args: []string{
				"--set", "config.cluster.domains.vendor=metax-tech.com", "--set", "config.cluster.domains.company=maip.example.com",
				"--set", "config.cluster.labels[0].key=cloud.ebtech.com/gpu", "--set", "config.cluster.labels[0].value=gpu.model",
				"--set", "config.nodes[0].nodeName=n1", "--set", "config.nodes[0].domains.card=npu",
				"--set", "config.nodes[0].labels[0].key=ring", "--set", "config.nodes[0].labels[0].value=node.name",
				"--set", "config.nodes[0].taints.effect=NoExecute",
				"--set", "admissionPolicy.extraLabelKeys={rack,example.com/*.size}",
			},
			domains: []wellknown.Domains{moved, one},
			more:    []string{"cloud.ebtech.com/gpu", "ring", "rack", "example.com/*.size"},
			effects: []string{"NoExecute", "NoSchedule"},
		},
		{
			name:    "shares with a vendor's name of GPUs",
			args:    []string{"--set", "config.cluster.resources.sgpu=nvidia.com/gpu"},
			domains: []wellknown.Domains{wellknown.DefaultDomains()},
			effects: []string{"NoSchedule"},
		},
		{
			name:    "an existing ConfigMap, described",
			args:    []string{"--set", "config.existingConfigMap=mine", "--set", "config.cluster.domains.vendor=metax-tech.com", "--set", "config.cluster.domains.company=maip.example.com"},
			domains: []wellknown.Domains{moved},
			effects: []string{"NoSchedule"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			labels, taints := slices.Clone(tt.more), []string{}
			for _, d := range tt.domains {
				labels = append(labels, d.NodeLabels()...)
				taints = append(taints, d.NodeTaints()...)
			}
			p := loadPolicy(t, tt.args...)
			got := map[string][]string{
				"labels":      unique(append(p.texts(t, "allowedLabels"), p.patterns(t)...)),
				"taints":      p.texts(t, "allowedTaints"),
				"annotations": p.texts(t, "allowedAnnotations"),
				"effects":     p.texts(t, "allowedEffects"),
			}
			want := map[string][]string{
				"labels":      unique(labels),
				"taints":      unique(taints),
				"annotations": wellknown.NodeAnnotations(),
				"effects":     tt.effects,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func unique(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// texts is the value of a variable that is a list of texts.
func (p *policy) texts(t *testing.T, name string) []string {
	t.Helper()
	list := literal[string](t, p, name)
	for _, text := range list {
		if strings.Contains(text, "*") {
			t.Errorf("%s: %q would be compared with its *", name, text)
		}
	}
	return list
}

// patterns is the variable allowedPatterns, as the chart's user writes them.
func (p *policy) patterns(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pair := range literal[[]string](t, p, "allowedPatterns") {
		if len(pair) != 2 {
			t.Errorf("allowedPatterns: want what stands before and after the *, got %q", pair)
		}
		all = append(all, strings.Join(pair, "*"))
	}
	return all
}

// literal is the value of a variable that needs no input: whatever it takes
// from elsewhere is an error.
func literal[T any](t *testing.T, p *policy, name string) []T {
	t.Helper()
	for _, v := range p.spec.Variables {
		if v.Name != name {
			continue
		}
		value, err := p.eval(v.Expression, map[string]any{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		list, err := value.ConvertToNative(reflect.TypeFor[[]T]())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return list.([]T)
	}
	t.Fatalf("the policy has no variable %s", name)
	return nil
}

// Keys become part of CEL. The schema rejects what is no key, and the template
// does so again: Helm can skip the schema.
func TestKeysCannotChangeThePolicy(t *testing.T) {
	for _, tt := range []struct{ name, set, want string }{
		{"end of the text", "admissionPolicy.extraLabelKeys[0]=x'] + ['y", "letters, digits and -_./ only"},
		{"escape", `admissionPolicy.extraLabelKeys[0]=x\\`, "letters, digits and -_./ only"},
		{"new line", "admissionPolicy.extraLabelKeys[0]=x\ny: z", "letters, digits and -_./ only"},
		{"in a pattern", "admissionPolicy.extraLabelKeys[0]=x*']", "letters, digits and -_./ only"},
		{"two stars", "admissionPolicy.extraLabelKeys[0]=x**", "one * in a key"},
		{"rule", "config.cluster.labels[0].key=x'", "letters, digits and -_./ only"},
		{"rule of some nodes", "config.nodes[0].labels[0].key=x'", "letters, digits and -_./ only"},
		{"domain", "config.cluster.domains.vendor=x'", "letters, digits and -_./ only"},
		{"domain of some nodes", "config.nodes[0].domains.company=x'", "letters, digits and -_./ only"},
		{"effect", "config.cluster.taints.effect=x'", "letters, digits and -_./ only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := helm(t, "template", generated, chartDir, "-n", namespace, "--skip-schema-validation", "--set", tt.set)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
