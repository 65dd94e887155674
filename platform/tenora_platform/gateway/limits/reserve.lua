-- Admit a request against several sliding windows at once, or against none of them.
--
-- KEYS[1]       the hold: what this reservation took, so that a repeated call changes nothing
-- KEYS[2..]     one hash per limit: one-second bucket -> amount taken in it
-- ARGV[1]       seconds that a hold is kept
-- ARGV[2..]     per limit: its ceiling, and the amount that this request may use at most
--
-- Answers { granted (1 or 0), bucket, then per limit: used, ms until it fits, ms until the window is empty }.
-- `used` includes this request if it was granted. A wait of -1 is "never": the amount exceeds the ceiling.
--
-- The window of 60 s may end anywhere inside a second, so the current bucket and the 60 before it are counted.
-- A bucket therefore counts for 60 to 61 s, and in any 60 s at most the ceiling is granted.

local WINDOW = 61

local time = redis.call('TIME')

local second = tonumber(time[1])
local now_ms = second * 1000 + math.floor(tonumber(time[2]) / 1000)
local oldest = second - WINDOW + 1
local granted = 1
local answer = {0, second}
local repeated = redis.call('GET', KEYS[1])

for index = 2, #KEYS do
    local ceiling = tonumber(ARGV[2 * index - 2])
    local amount = tonumber(ARGV[2 * index - 1])
    local stored = redis.call('HGETALL', KEYS[index])
    local used, newest = 0, nil
    local buckets = {}
    for field = 1, #stored, 2 do
        local bucket, taken = tonumber(stored[field]), tonumber(stored[field + 1])
        if bucket < oldest then
            redis.call('HDEL', KEYS[index], stored[field])
        elseif taken > 0 then
            used = used + taken
            buckets[#buckets + 1] = {bucket, taken}
            if newest == nil or bucket > newest then newest = bucket end
        end
    end

    local wait = 0
    if not repeated and used + amount > ceiling then
        granted = 0
        wait = -1
        if amount <= ceiling then
            table.sort(buckets, function(one, other) return one[1] < other[1] end)
            local excess = used + amount - ceiling
            for _, entry in ipairs(buckets) do
                excess = excess - entry[2]
                if excess <= 0 then
                    wait = (entry[1] + WINDOW) * 1000 - now_ms
                    break
                end
            end
        end
    end
    local empty = 0
    if newest ~= nil then empty = (newest + WINDOW) * 1000 - now_ms end
    answer[#answer + 1] = used
    answer[#answer + 1] = wait
    answer[#answer + 1] = empty
end

if repeated then
    answer[1], answer[2] = 1, tonumber(repeated)
elseif granted == 1 then
    for index = 2, #KEYS do
        local amount = tonumber(ARGV[2 * index - 1])
        local position = 3 * index - 3
        if amount > 0 then
            redis.call('HINCRBY', KEYS[index], second, amount)
            redis.call('EXPIRE', KEYS[index], WINDOW + 1)
            answer[position] = answer[position] + amount
            answer[position + 2] = (second + WINDOW) * 1000 - now_ms
        end
    end
    redis.call('SET', KEYS[1], second, 'EX', ARGV[1])
    answer[1] = 1
end
return answer
