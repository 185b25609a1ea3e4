package chart

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// docs/sgpu.md answers bad requests in the words of the program.
func TestAnswersToBadRequests(t *testing.T) {
	c := config.Default()
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(root + "/docs/sgpu.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, begins := strings.Cut(string(text), "<!-- answers: ")
	table, _, ends := strings.Cut(table, "<!-- /answers -->")
	if !begins || !ends {
		t.Fatal("the page has no table of answers")
	}
	code := regexp.MustCompile("`([^`]*)`")
	rows := 0
	for _, line := range lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		rows++
		limits, annotations := corev1.ResourceList{}, map[string]string{}
		for _, asked := range code.FindAllStringSubmatch(cells[1], -1) {
			key, value, _ := strings.Cut(asked[1], ": ")
			if strings.Contains(key, "/") {
				annotations[key] = value
				continue
			}
			q, err := resource.ParseQuantity(value)
			if err != nil {
				t.Fatalf("%s: %v", asked[1], err)
			}
			limits[corev1.ResourceName("nvidia.com/"+key)] = q
		}
		var want []string
		for _, quoted := range code.FindAllStringSubmatch(cells[3], -1) {
			want = append(want, quoted[1])
		}
		_, err := quota.ParseRequest(limits, annotations, &c)
		if err == nil {
			err = errors.New("")
		}
		if got := err.Error(); got != strings.Join(want, "\n") {
			t.Errorf("%s\npage:    %q\nprogram: %q", cells[1], strings.Join(want, "\n"), got)
		}
	}
	if rows < 15 {
		t.Errorf("%d rows", rows)
	}
}
