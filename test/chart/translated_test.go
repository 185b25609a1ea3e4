package chart

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/rule"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// A container of HAMi's has as much of a GPU under the configuration of docs/hami.md as
// HAMi gave it, and as the page's container has under heddle's own names.
func TestHAMiPodHasTheSameShare(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/hami.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "<!-- theirs: ")
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(after, 3)
	if len(blocks) != 3 {
		t.Fatal("the page has no configuration with a container in either spelling")
	}
	theirs, ours := limits(t, blocks[1][1]), limits(t, blocks[2][1])
	memory, cores, count := theirs["nvidia.com/gpumem"], theirs["nvidia.com/gpucores"], theirs["nvidia.com/gpu"]
	want := quota.Request{
		GPUs: int(count.Value()), VCore: int(cores.Value()), MemoryMiB: memory.Value(), Policy: quota.FixedShare,
	}
	for section, limits := range map[string]corev1.ResourceList{blocks[0][1]: theirs, "mode: sgpu": ours} {
		c, err := config.Parse(map[string][]byte{config.KeyVersion: []byte(config.Version), config.KeyCluster: []byte(section)}, rule.CEL{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := quota.ParseRequest(limits, nil, &c.Cluster)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v: error %v (-want +got):\n%s", limits, err, diff)
		}
	}
}

// The configuration that docs/sgpu.md has for NVIDIA's replicas is what heddle makes of
// them, and a pod with a GPU and no more asks for its part.
func TestReplicasAreDefaults(t *testing.T) {
	for _, page := range []string{"sgpu.md", "zh-CN/sgpu.md"} {
		text, err := os.ReadFile(root + "/docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		_, section, _ := strings.Cut(string(text), "```yaml\nmode: sgpu\nresources: {sgpu: nvidia.com/gpu}")
		section, _, _ = strings.Cut(section, "```")
		_, section, _ = strings.Cut(section, "\n")
		section = "mode: sgpu\nresources: {sgpu: nvidia.com/gpu}\n" + section
		c, err := config.Parse(map[string][]byte{config.KeyVersion: []byte(config.Version), config.KeyCluster: []byte(section)}, rule.CEL{})
		if err != nil {
			t.Fatal(err)
		}
		want := quota.Request{GPUs: 1, MemoryPercent: 25, Policy: quota.FixedShare}
		got, err := quota.ParseRequest(limits(t, "limits: {nvidia.com/gpu: 1}"), nil, &c.Cluster)
		if diff := cmp.Diff(want, got); diff != "" || err != nil || c.Cluster.SGPU.SlotsPerGPU != 4 {
			t.Errorf("%s: %d slots, error %v (-want +got):\n%s", page, c.Cluster.SGPU.SlotsPerGPU, err, diff)
		}
	}
}

// limits reads the limits of a container.
func limits(t *testing.T, text string) corev1.ResourceList {
	t.Helper()
	var container struct {
		Limits map[string]string `yaml:"limits"`
	}
	if err := yaml.Unmarshal([]byte(text), &container); err != nil {
		t.Fatal(err)
	}
	list := corev1.ResourceList{}
	for name, value := range container.Limits {
		list[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return list
}
