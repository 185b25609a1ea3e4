package fabric_test

import (
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/topo/fabric"
)

func TestLevels(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		levels []fabric.Level
		want   string
	}{
		{"none", nil, "levels: 0 are configured, 1 to 8 are possible"},
		{
			"every fault",
			[]fabric.Level{
				{Kind: "node", By: fabric.ByLeaf},
				{Kind: "Rack 1", By: "shade"},
				{Kind: "pair", By: fabric.ByBlock},
				{Kind: "leaf", By: fabric.ByLeaf, Nodes: 3},
			},
			"levels[0]: kind node is taken\n" +
				"levels[1]: kind \"Rack 1\" is not 1 to 20 lower-case letters and digits\n" +
				"levels[1]: unknown evidence \"shade\": use path, spine, leaf, nvlink or block\n" +
				"levels[2]: nodes is 0, not 1 to 4096\n" +
				"levels[3]: nodes is for levels by block",
		},
	} {
		_, err := fabric.New(fabric.Config{Levels: tt.levels})
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	for mode, want := range map[fabric.Mode]string{"custom": "has no preset", "ring": "unknown mode"} {
		if _, err := fabric.Preset(mode, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("mode %s: %v", mode, err)
		}
	}
	if _, err := fabric.Preset(fabric.ModeDragonfly, -1); err == nil {
		t.Error("a dragonfly of -1 nodes is accepted")
	}
}
