-- Give back what a reservation did not use, in the bucket that it was taken from. A repeated call changes nothing.
--
-- KEYS[1]   the hold          KEYS[2..]   one hash per limit, as in reserve.lua
-- ARGV      per limit: the amount to give back
--
-- Answers 1 if it was settled now, 0 if it had been before or the hold is too old to matter.

local bucket = redis.call('GET', KEYS[1])
if not bucket then return 0 end
redis.call('DEL', KEYS[1])
for index = 2, #KEYS do
    local unused = tonumber(ARGV[index - 1])
    if unused > 0 and redis.call('HEXISTS', KEYS[index], bucket) == 1 then
        redis.call('HINCRBY', KEYS[index], bucket, -unused)
    end
end
return 1
