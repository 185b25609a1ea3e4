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
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// The container that docs/hami.md makes of HAMi's has as much of a GPU as HAMi gave it.
func TestTranslatedPodHasTheSameShare(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/hami.md")
	if err != nil {
		t.Fatal(err)
	}
	before, after, ok := strings.Cut(string(text), "<!-- translated: ")
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	theirs := blocks.FindAllStringSubmatch(before, -1)
	ours := blocks.FindStringSubmatch(after)
	if !ok || len(theirs) == 0 || ours == nil {
		t.Fatal("the page has no pod before and after")
	}
	hami := limits(t, theirs[len(theirs)-1][1])
	memory, cores := hami["nvidia.com/gpumem"], hami["nvidia.com/gpucores"]
	count := hami[corev1.ResourceName(wellknown.DefaultDomains().GPUResource())]
	want := quota.Request{
		GPUs: int(count.Value()), VCore: int(cores.Value()), MemoryMiB: memory.Value(), Policy: quota.FixedShare,
	}
	c := config.Default()
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	got, err := quota.ParseRequest(limits(t, ours[1]), nil, &c)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
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
