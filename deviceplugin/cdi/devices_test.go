package cdi

import "testing"

// TestSpecsWithoutShares are not restored.
func TestSpecsWithoutShares(t *testing.T) {
	const device = "0123456789ab-0123456789abcdef"
	for _, env := range []string{
		``, `"HEDDLE_SHARES=[]"`, `"HEDDLE_SHARES={\"shares\":[{\"vcore\":-1}]}"`,
		`"HEDDLE_SHARES={\"shares\":[{\"memoryMiB\":1e18}]}"`,
	} {
		spec := `{"devices":[{"name":"` + device + `","containerEdits":{"env":[` + env + `]}}]}`
		if shares, err := parseSharing([]byte(spec), device); err == nil {
			t.Errorf("%s: shares %v", env, shares)
		}
	}
}
