package openb

import "testing"

// Of made-up clusters with tasks that end heddle fills more than kube-scheduler's policies and BestFit, and about as
// much as FGD, which knows the tasks in advance.
func TestMixes(t *testing.T) {
	for _, m := range Mixes() {
		t.Run(m.Name, func(t *testing.T) {
			filled := map[string]float64{}
			for _, p := range Policies(m.Nodes, m.Tasks, 1) {
				filled[p.Name] = Churn(m.Nodes, m.Tasks, 1.2, 1, p)
				t.Logf("%s: %.2f %%", p.Name, filled[p.Name])
			}
			for name, percent := range filled {
				if percent > filled["heddle"]+0.5 || name != "FGD" && percent > filled["heddle"]+0.1 {
					t.Errorf("heddle fills %.2f %%, %s %.2f", filled["heddle"], name, percent)
				}
			}
		})
	}
}
